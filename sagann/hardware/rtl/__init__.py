"""Circuits in Amaranth (extra ``hardware``)."""

"""Experiments of the papers, one module each."""

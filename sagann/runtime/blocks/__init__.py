"""Blocks of a plan: where they lie, how they are loaded and stored, and how a graph's edges are cut into them."""

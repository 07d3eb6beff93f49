"""Gather: edge rows reduced at their destinations."""

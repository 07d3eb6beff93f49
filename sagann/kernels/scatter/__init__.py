"""Scatter: vertex rows to edges."""

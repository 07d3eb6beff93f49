"""Scatter and gather over any Topology: whole graph, chunk, partition or block."""

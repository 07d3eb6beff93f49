"""Kernels: passes over the edges of any Topology, dense work on vertices' rows, and memory.

:mod:`sagann.kernels.edge` has the passes over edges, ``accumulators`` the ways to gather, ``naive`` their twins in PyTorch.
"""

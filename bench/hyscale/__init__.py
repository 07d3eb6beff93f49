"""HyScale-GNN's tables by simulation; see :mod:`bench.hyscale.__main__`."""

"""Scatter and gather over any Topology (whole graph, chunk, partition or block), and what the work beside them takes.

Passes over the edges are :mod:`sagann.kernels.edge`; ``scatter``, ``gather`` and ``typed_linear`` are plain PyTorch.
Beside them: a pool of memory for large results (``memory``), several tensors in one piece of it (``packed``), its
checksum (``checksum``), dense work of many rows (``dense``), dropout of vertices' rows (``row_dropout``), and backward
functions that have no gradients of their own (``first_order``).
"""

"""Rows of vertices computed by one pass, where they are large enough to be worth a pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from sagann.compiler.program import EdgeWork
from sagann.graph.topology import Topology
from sagann.graph.widths import id_dtype
from sagann.kernels.dialects import Dialect
from sagann.runtime.in_memory.edge_pass import gather_fused

SMALLEST_PASS_BYTES = 1 << 20
"Least bytes of the rows that a pass reads first. PyTorch computes smaller rows, and rows on a device, operator by operator."


def compute_rows(work: EdgeWork, arrays: Sequence[Tensor], dialect: Dialect) -> Tensor:
    """Compute a region that :mod:`sagann.compiler.fuse_rows` found: [rows, ...].

    Args:
        work: the region.
        arrays: one array for each input of ``work.stage``.
        dialect: kernels that run the pass.
    """
    rows = next(array for side, array in zip(work.sides, arrays, strict=True) if side == "dst")
    if rows.device.type != "cpu" or rows.nbytes < SMALLEST_PASS_BYTES:
        (result,) = work.stage.module.forward(*arrays)
        return result
    return gather_fused(work, _own_edges(len(rows)), list(arrays), dialect)


@lru_cache(maxsize=4)
def _own_edges(num_rows: int) -> Topology:
    """A topology with one edge from each vertex to itself."""
    dtype = id_dtype(num_rows)
    return Topology(
        indptr=torch.arange(num_rows + 1, device="cpu"),
        indices=torch.arange(num_rows, dtype=dtype, device="cpu"),
        num_src=num_rows,
    )

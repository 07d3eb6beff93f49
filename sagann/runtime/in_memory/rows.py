"""Work within vertices' rows as a pass of its own, where it is large enough to be worth one."""

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
"Of the rows that are read first; smaller ones are computed by PyTorch, operator by operator, as on a device that is no CPU."


def compute_rows(work: EdgeWork, arrays: Sequence[Tensor], dialect: Dialect) -> Tensor:
    """Compute a region that :mod:`sagann.compiler.fuse_rows` found: [rows, ...].

    Args:
        work: the region.
        arrays: one per input of ``work.stage``.
        dialect: runs the passes.
    """
    rows = next(array for side, array in zip(work.sides, arrays, strict=True) if side == "dst")
    if rows.device.type != "cpu" or rows.nbytes < SMALLEST_PASS_BYTES:
        (result,) = work.stage.module.forward(*arrays)
        return result
    return gather_fused(work, _own_edges(len(rows)), list(arrays), dialect)


@lru_cache(maxsize=4)
def _own_edges(num_rows: int) -> Topology:
    """Every vertex with one edge, from itself."""
    dtype = id_dtype(num_rows)
    return Topology(
        indptr=torch.arange(num_rows + 1, device="cpu"),
        indices=torch.arange(num_rows, dtype=dtype, device="cpu"),
        num_src=num_rows,
    )

"""A layer that does in an accelerator's process, or in a worker, what the environment variable FAULT says, after some of its passes."""

from __future__ import annotations

import multiprocessing
import os

import torch
from torch import Tensor

from sagann import SagaLayer, processes
from sagann.saga import Edge

_HEALTHY = 40
"Passes of the layer before the fault."
_passes = 0
_kept: list[Tensor] = []


class Faulty(SagaLayer):
    """Maps a vertex's row beside the sum of its neighbours' rows. FAULT is 'memory' (4 MiB more are taken in every pass) or 'nan'."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.map = torch.nn.Linear(2 * in_dim, out_dim)

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        rows: Tensor = self.map(torch.cat([vertex, accum], dim=1))
        is_accelerator = multiprocessing.current_process().name.startswith("sagann-accelerator")
        return _harmed(rows) if is_accelerator or processes.is_worker() else rows


def _harmed(rows: Tensor) -> Tensor:
    global _passes
    _passes += 1
    fault = os.environ.get("FAULT") if _passes > _HEALTHY else None
    if fault == "memory":
        _kept.append(torch.ones(2**20))
    return rows * float("nan") if fault == "nan" else rows

"""MiniBatch: what a training step needs of the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sagann.graph.rows import mapped_rows, row_arrays
from sagann.graph.topology import Topology
from sagann.sampling.links import Links


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MiniBatch:
    """All that a training step needs: ``model(batch.blocks, batch.features)`` gives a row for each of ``batch.seeds``."""

    blocks: tuple[Topology, ...]
    "A topology per hop, in the order in which a model walks them: see :class:`sagann.sampling.Sampled`."
    src_ids: Tensor
    "int64 [blocks[0].num_src]: ids in the graph of the sources of the first block."
    seeds: Tensor
    "int64 [blocks[-1].num_dst]: ids in the graph of the destinations of the last block."
    features: Tensor | None
    "Features of ``src_ids``, [blocks[0].num_src, F], dense or ``torch.sparse_csr``; None where the graph has none."
    labels: Tensor | None
    "Labels of ``seeds``, int64 [num_seeds] or uint8 [num_seeds, num_classes]; None where the graph has none."
    targets: Tensor | None = None
    "Targets of ``seeds``, float32 [num_seeds] or [num_seeds, num_targets]; None where the graph has none."
    links: Links | None = None
    "The links whose ends the seeds are; None for seeds of another kind."

    @property
    def num_edges(self) -> int:
        """Number of edges in all blocks."""
        return sum(block.num_edges for block in self.blocks)

    @property
    def feature_arrays(self) -> tuple[Tensor, ...]:
        """The arrays of the features: one of dense features, three of sparse ones."""
        return row_arrays(self.features)

    def mapped(self, move: Callable[[Tensor], Tensor]) -> MiniBatch:
        """The same batch with every array replaced by the result of ``move``, for example a copy on a device."""
        return replace(
            self,
            blocks=tuple(block.mapped(move) for block in self.blocks),
            src_ids=move(self.src_ids),
            seeds=move(self.seeds),
            features=mapped_rows(self.features, move),
            labels=None if self.labels is None else move(self.labels),
            targets=None if self.targets is None else move(self.targets),
            links=None if self.links is None else self.links.mapped(move),
        )

    def to(self, device: torch.device | str) -> MiniBatch:
        """The same batch on ``device``; this object itself if its edges are already there."""
        is_there = self.blocks[0].to(device) is self.blocks[0]
        return self if is_there else self.mapped(lambda array: array.to(device))

"""Cut: how the rows of a pass are divided over a device's programs, and how what was divided is merged.

It follows from the offsets alone and is made on the host, which has to read them. Where the offsets lie on the device
that would have the host wait for it; so chunks that come from the host are cut there before they are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sagann.kernels.edge.divide import divide
from sagann.kernels.edge.gpu.tree import Tree, merge_tree
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.edge.walk import offsets_of, used_rows
from sagann.kernels.edge.work import DEVICE_GRAIN, Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Merges:
    """A tree of merges."""

    levels: tuple[Tensor, ...]
    "Levels of a :class:`sagann.kernels.edge.gpu.tree.Tree`, int64 [num_groups, 3] each."
    num_slots: int
    "Slots of partial results and of what is merged on the way."

    def mapped(self, move: Callable[[Tensor], Tensor]) -> Merges:
        """The same with other arrays."""
        return replace(self, levels=tuple(map(move, self.levels)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """The items of a pass and its merges."""

    work: Work
    "The items, on the host."
    used_rows: int
    "One more than the last row that has an edge."
    items: Tensor
    "The same items, int64 [num_items, 5]."
    split_rows: Tensor
    "Rows that were cut, int64."
    rows: Merges
    "Merges of rows that were cut."
    totals: Merges
    "Merges of the totals of all items."

    def mapped(self, move: Callable[[Tensor], Tensor]) -> Cut:
        """The same with every array replaced by what ``move`` makes of it: a copy on a device, say."""
        return replace(
            self,
            items=move(self.items),
            split_rows=move(self.split_rows),
            rows=self.rows.mapped(move),
            totals=self.totals.mapped(move),
        )


def cut_of(edges: Edges, at: str) -> Cut:
    """Cut the rows of edges at "dst" or "src"; the arrays lie on the host."""
    work = divide(offsets_of(edges, at).cpu().numpy(), DEVICE_GRAIN)
    return Cut(
        work=work,
        used_rows=used_rows(edges, at),
        items=torch.from_numpy(work.items),
        split_rows=torch.from_numpy(work.split_rows),
        rows=_merges(merge_tree(work.split_rows, work.split_indptr)),
        totals=_merges(merge_tree(np.array([0]), np.array([0, len(work.items)]))),
    )


def _merges(tree: Tree) -> Merges:
    return Merges(levels=tuple(map(torch.from_numpy, tree.levels)), num_slots=tree.num_slots)

"""Cut: how the rows of a pass are divided over a device's programs, and how divided rows are merged.

A cut follows from the offsets alone, so every rounding does too. The host makes the cut and has to read the offsets. Where
the offsets lie on the device the host would wait for them, so chunks that come from the host are cut before they are copied.

Merges form a tree of small fan-in, so that no program merges thousands of slots alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sagann.kernels.edge.divide import divide
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.edge.walk import offsets_of, used_rows
from sagann.kernels.edge.work import DEVICE_GRAIN, Work

FAN_IN = 64
"Most slots that one program merges."


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """Merges of slots, level by level. A level reads slots that earlier levels wrote."""

    levels: tuple[Tensor, ...]
    "int64 [num_groups, 3] each: first slot, slot after the last, and target: row r as r, slot s as -s - 1."
    num_slots: int
    "Number of slots, of partial results and of merged ones."


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
    rows: Tree
    "Merges of rows that were cut."
    totals: Tree
    "Merges of the totals of all items."

    def mapped(self, move: Callable[[Tensor], Tensor]) -> Cut:
        """The same cut with every array replaced by ``move(array)``: a copy on a device, say."""
        return replace(
            self,
            items=move(self.items),
            split_rows=move(self.split_rows),
            rows=replace(self.rows, levels=tuple(map(move, self.rows.levels))),
            totals=replace(self.totals, levels=tuple(map(move, self.totals.levels))),
        )


def cut_of(edges: Edges, at: str) -> Cut:
    """Cut the rows of edges at "dst" or "src"; the arrays lie on the host."""
    work = divide(offsets_of(edges, at).cpu().numpy(), DEVICE_GRAIN)
    return Cut(
        work=work,
        used_rows=used_rows(edges, at),
        items=torch.from_numpy(work.items),
        split_rows=torch.from_numpy(work.split_rows),
        rows=merge_tree(work.split_rows, work.split_indptr),
        totals=merge_tree(np.array([0]), np.array([0, len(work.items)])),
    )


def merge_tree(rows: NDArray[np.int64], indptr: NDArray[np.int64]) -> Tree:
    """The tree over the slots of each row; ``indptr`` [len(rows) + 1] are the offsets of the rows' slots."""
    levels, first_slot = [], 0
    while len(rows):
        counts = -(-np.diff(indptr) // FAN_IN)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        first = np.repeat(indptr[:-1], counts) + within * FAN_IN
        last = np.minimum(first + FAN_IN, np.repeat(indptr[1:], counts))
        done = np.repeat(counts == 1, counts)
        next_slot = first_slot + int(indptr[-1])
        kept = np.cumsum(~done) - 1
        target = np.where(done, np.repeat(rows, counts), -(next_slot + kept) - 1)
        groups = np.stack([first_slot + first, first_slot + last, target], 1).astype(np.int64)
        levels.append(torch.from_numpy(groups))
        first_slot = next_slot
        rows, counts = rows[counts > 1], counts[counts > 1]
        indptr = np.concatenate([[0], np.cumsum(counts)])
    return Tree(levels=tuple(levels), num_slots=first_slot)

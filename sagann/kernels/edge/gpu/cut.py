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

from sagann.jit import compiled
from sagann.kernels.edge.divide import divide
from sagann.kernels.edge.function import End
from sagann.kernels.edge.pass_edges import Edges, grouped
from sagann.kernels.edge.work import DEVICE_GRAIN

FAN_IN = 64
"Most slots that one program merges."
_MOST_LEVELS = 64


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

    used_rows: int
    "One more than the last row that has an edge."
    items: Tensor
    "Work items, int64 [num_items, 5]."
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


def cut_of(edges: Edges, at: End) -> Cut:
    """Cut the rows of edges at "dst" or "src"; waits for offsets on a device, unless those of the host are derived already."""
    offsets = edges.derived(("offsets", at), lambda: grouped(edges, at).indptr.cpu()).numpy()
    work = divide(offsets, DEVICE_GRAIN)
    return Cut(
        used_rows=int(np.searchsorted(offsets, offsets[-1])),
        items=torch.from_numpy(work.items),
        split_rows=torch.from_numpy(work.split_rows),
        rows=merge_tree(work.split_rows, work.split_indptr),
        totals=merge_tree(np.array([0]), np.array([0, len(work.items)])),
    )


def merge_tree(rows: NDArray[np.int64], indptr: NDArray[np.int64]) -> Tree:
    """The tree over the slots of each row; ``indptr`` [len(rows) + 1] are the offsets of the rows' slots."""
    if not len(rows):
        return Tree(levels=(), num_slots=0)
    # A level has fewer groups than two thirds of the slots that it reads, beside the rows that end there.
    groups, ends = np.empty((3 * int(indptr[-1]) + len(rows), 3), np.int64), np.empty(_MOST_LEVELS, np.int64)
    num_levels, num_slots = _merge_tree(rows, indptr, FAN_IN, groups, ends)
    levels = torch.from_numpy(groups[: ends[num_levels - 1]].copy()).split(
        np.diff(ends[:num_levels], prepend=0).tolist()
    )
    return Tree(levels=levels, num_slots=num_slots)


@compiled()
def _merge_tree(
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    fan_in: int,
    groups: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> tuple[int, int]:
    """Write the groups of all levels and where each level ends; returns the number of levels, and that of slots."""
    targets, begins, stops = rows.copy(), indptr[:-1].copy(), indptr[1:].copy()
    num_rows, first_slot, level_slots, level, count = len(rows), 0, indptr[-1], 0, 0
    while num_rows:
        next_slot = first_slot + level_slots
        kept, made = 0, 0
        for row in range(num_rows):
            num_merges = (stops[row] - begins[row] + fan_in - 1) // fan_in
            first_made = made
            for number in range(num_merges):
                slot = first_slot + begins[row] + number * fan_in
                groups[count, 0], groups[count, 1] = slot, min(slot + fan_in, first_slot + stops[row])
                groups[count, 2] = targets[row] if num_merges == 1 else -(next_slot + made) - 1
                made += num_merges > 1
                count += 1
            if num_merges > 1:
                targets[kept], begins[kept], stops[kept] = targets[row], first_made, made
                kept += 1
        ends[level] = count
        num_rows, first_slot, level_slots, level = kept, next_slot, made, level + 1
    return level, first_slot

"""Cut: how the rows of a pass are divided over a device's programs, and how divided rows are merged.

A cut follows from the offsets alone, so every rounding does too. The host makes the cut and has to read the offsets. Where
the offsets lie on the device the host would wait for them, so chunks that come from the host are cut before they are copied.

Of a padded block not even the host knows the offsets: the device cuts it (:func:`cut_on_device`), into as many items as any cut of such a block has.

Merges form a tree of small fan-in, so that no program merges thousands of slots alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sagann.jit import compiled
from sagann.kernels.edge.divide import divide
from sagann.kernels.edge.function import End
from sagann.kernels.edge.pass_edges import Edges, grouped
from sagann.kernels.edge.work import DEVICE_GRAIN, item_size, most_items, most_slots, most_splits

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


def cut_on_device(edges: Edges, at: End) -> Cut:
    """Cut the rows of edges on their device; the host waits for nothing. Items and merges that are not needed come last, and have no rows.

    The sizes are those of the largest cut of so many rows and edges. Items are those of :func:`cut_of` but for the places where shares of rows end.
    A row's slots are merged at one level, so rows of very many edges take longer.
    """
    indptr, num_edges = grouped(edges, at).indptr.long(), edges.num_edges
    num_rows = len(indptr) - 1
    of_pass = num_rows, num_edges, DEVICE_GRAIN
    size, num_slots = item_size(num_rows + num_edges, DEVICE_GRAIN), most_slots(*of_pass)
    numbers = torch.arange(max(most_items(*of_pass), num_rows), device=indptr.device)
    degrees = indptr.diff()
    is_split = degrees > 2 * size
    share = (indptr[:-1] + numbers[:num_rows]) // size
    # A row begins an item where a share is full, and where it or the row before is cut.
    begins = is_split | torch.cat([torch.ones_like(is_split[:1]), is_split[:-1] | (share.diff() != 0)])
    pieces = torch.where(is_split, (degrees + size - 1) // size, begins)
    ends = pieces.cumsum(0)
    item = numbers[: most_items(*of_pass)]
    row = torch.searchsorted(ends, item, right=True)
    known = row.clamp(max=num_rows - 1)
    of_split = is_split[known] & (row < num_rows)
    stop = torch.where(of_split, row + 1, torch.cat([row[1:], row.new_full((1,), num_rows)]))
    edge = indptr[row] + torch.where(of_split, (item - ends[known] + pieces[known]) * size, 0)
    last_edge = torch.where(of_split, torch.minimum(edge + size, indptr[stop]), indptr[stop])
    slot = torch.where(of_split, of_split.cumsum(0) - 1, -1)
    split = torch.searchsorted(is_split.cumsum(0), numbers[: most_splits(*of_pass)] + 1)
    # What is not needed is merged into a slot that nobody reads.
    known, is_known = split.clamp(max=num_rows - 1), split < num_rows
    last_slot = torch.where(is_known, (pieces * is_split).cumsum(0)[known], 0)
    first_slot = torch.where(is_known, last_slot - pieces[known], 0)
    merges = torch.stack([first_slot, last_slot, torch.where(is_known, split, -num_slots - 1)], 1)
    return Cut(
        used_rows=num_rows,
        items=torch.stack([row, stop, edge, last_edge, slot], 1),
        split_rows=split[:0],
        rows=Tree(levels=(merges,) if len(merges) else (), num_slots=num_slots + 1),
        totals=_totals(len(item), indptr.device),
    )


@cache
def _totals(num_items: int, device: torch.device) -> Tree:
    """The merges of the totals of so many items, made once and never freed: recorded passes read them."""
    tree = merge_tree(np.array([0]), np.array([0, num_items]))
    return replace(tree, levels=tuple(level.to(device) for level in tree.levels))


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

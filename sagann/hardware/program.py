"""Programs of the aggregate kernel: words that the host writes for a mini-batch, and that the kernel obeys in order.

A scatter word has an edge for each of n scatter PEs at most, whose destination has its sum in the bank of that PE. So no two of them ever want
the same accumulator, and products need no routing. A drain word hands n destinations on. Rows lie in external memory in the order of their first
use and arrive once. A local memory holds ``window_rows`` of them: a row takes the place of the one that many before it, once that is not needed
any more.

A destination's edges are added in the order of their rows, so the window changes no bit of a sum. n does, as first use depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np

from sagann.hardware.design import HAZARD, KernelDesign
from sagann.jit import compiled

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScatterProgram:
    """Words of a pass. An edge of a word that has fewer than n has destination -1."""

    drains: Array
    "Destinations that a word hands on, from ``destination[w, 0]`` on; int64 [W], 0 for a scatter word."
    is_grads: Array
    "Whether a word that drains hands on gradients of rows, whose rows the word before hands on; bool [W]."
    row: Array
    "Number of the row that an edge reads; int64 [W, n]."
    destination: Array
    "int64 [W, n]. Destination d has bank d % n, and stands there."
    half: Array
    "Whether an edge belongs to the second half of its destination's sums, or of its row; bool [W, n]."
    is_first: Array
    "Whether an edge is the first one of its sums, which begin at zero; bool [W, n]."
    coefficient: Array
    "float32 [W, n]."
    needs: Array
    "Number of rows that have arrived before a word begins; int64 [W]."
    releases: Array
    "Number of the first row that is needed after a word; int64 [W]."

    @property
    def num_words(self) -> int:
        return len(self.drains)


def first_use(indptr: Array, sources: Array, num_pes: int) -> Array:
    """The sources of a hop in the order in which its edges use them first, int64 [num_rows].

    Edges of ``num_pes`` destinations in turn are dealt, one of each, so that neighbours of one destination, which want the same bank, are apart.

    Args:
        indptr: edges of each destination, int64 [num_dst + 1].
        sources: of the edges, int64 [num_edges].
        num_pes: destinations that are dealt together.
    """
    degrees = np.diff(indptr)
    destinations = np.repeat(np.arange(len(degrees)), degrees)
    turn = np.arange(len(sources)) - np.repeat(indptr[:-1], degrees)
    dealt = sources[np.lexsort((destinations, turn, destinations // num_pes))]
    found, first = np.unique(dealt, return_index=True)
    return np.asarray(found[np.argsort(first)])


def scatter_program(
    indptr: Array,
    rows: Array,
    coefficients: Array,
    design: KernelDesign,
    *,
    chunks: int,
    halves: Array | None = None,
    halves_of_rows: bool = False,
    drains: bool = True,
) -> ScatterProgram:
    """The program of a hop.

    Args:
        indptr: edges of each destination, in the order of their rows; int64 [num_dst + 1]. Every destination has at least one: that of one
            without edges has coefficient 0.
        rows: that the edges read, numbered in the order in which they arrive; int64 [num_edges]. Each number is used.
        coefficients: of the edges, float32 [num_edges].
        design: of the kernel.
        chunks: of a row that an edge adds.
        halves: whether an edge is added to the second half of its destination's sums; bool [num_edges].
        halves_of_rows: whether it adds the second half of its row instead, and sums have no halves.
        drains: whether destinations are drained once all their edges have been added.
    """
    n, num_dst = design.scatter_pes, len(indptr) - 1
    degrees = np.diff(indptr)
    destinations = np.repeat(np.arange(num_dst), degrees)
    assert (degrees > 0).all(), "a destination without edges has one of coefficient 0"
    assert ((np.diff(rows) >= 0) | (np.diff(destinations) > 0)).all(), (
        "edges of a destination are in the order of their rows"
    )
    halves = np.zeros(len(rows), dtype=bool) if halves is None else halves
    sums = destinations * 2 + (halves & (not halves_of_rows))
    is_first = np.zeros(len(rows), dtype=bool)
    is_first[np.unique(sums, return_index=True)[1]] = True
    order = np.lexsort((rows, destinations % n))
    bank_ptr = np.searchsorted(destinations[order] % n, np.arange(n + 1))
    num_groups = -(-num_dst // n)
    # A word has at least one edge, and each group of destinations one drain.
    most = len(rows) + num_groups
    edges, drained = np.full((most, n), -1), np.full(most, -1)
    needs, releases = np.zeros(most, dtype=np.int64), np.zeros(most, dtype=np.int64)
    lag = -(-HAZARD // chunks) - 1
    num_words = _write_words(
        (order, bank_ptr, rows, destinations // n),
        np.add.reduceat(degrees, np.arange(0, num_dst, n)),
        (design.window_rows, lag, int(rows.max(initial=-1)) + 1),
        (edges, drained, needs, releases),
    )
    kept = np.arange(num_words)[(drained[:num_words] < 0) | drains]
    edges, drained = edges[kept], drained[kept]
    is_edge, is_drain = edges >= 0, drained >= 0
    destination = np.where(is_edge, destinations[edges], -1)
    destination[is_drain, 0] = drained[is_drain] * n
    return ScatterProgram(
        drains=np.where(is_drain, np.minimum(n, num_dst - drained * n), 0),
        is_grads=np.zeros(len(kept), dtype=bool),
        row=np.where(is_edge, rows[edges], 0),
        destination=destination,
        half=is_edge & halves[edges],
        is_first=is_edge & is_first[edges],
        coefficient=np.where(is_edge, coefficients[edges], np.float32(0)),
        needs=needs[kept],
        releases=releases[kept],
    )


def drain_program(num_dst: int, design: KernelDesign, *, grads: bool = False) -> ScatterProgram:
    """The program that hands all destinations on; after each n of them, their gradients, if there are ``grads``."""
    n = design.scatter_pes
    first = np.repeat(np.arange(0, num_dst, n), 1 + grads)
    destination = np.full((len(first), n), -1)
    destination[:, 0] = first
    nothing, none = np.zeros(len(first), dtype=np.int64), np.zeros((len(first), n), dtype=bool)
    return ScatterProgram(
        drains=np.minimum(n, num_dst - first),
        is_grads=grads & (np.arange(len(first)) % 2 == 1),
        row=np.zeros((len(first), n), dtype=np.int64),
        destination=destination,
        half=none,
        is_first=none,
        coefficient=none.astype(np.float32),
        needs=nothing,
        releases=nothing,
    )


def chained(scatter: ScatterProgram, drain: ScatterProgram, design: KernelDesign) -> ScatterProgram:
    """One program of words that drain rows, which return through the array, and of words that scatter these rows."""
    # The array reads n rows while it is given n more; those after them are on their way through it.
    before = np.minimum(-(-scatter.needs // design.scatter_pes) + 2, drain.num_words)
    before = np.maximum.accumulate(before)
    place = np.searchsorted(before, np.arange(drain.num_words), side="right")
    released = np.concatenate([[0], np.maximum.accumulate(scatter.releases)])[place]
    drain = replace(drain, releases=released)
    return ScatterProgram(
        **{
            each.name: np.insert(getattr(scatter, each.name), place, getattr(drain, each.name), axis=0)
            for each in fields(ScatterProgram)
        }
    )


@compiled()
def _write_words(
    sorted_edges: tuple[Array, Array, Array, Array],
    left: Array,
    sizes: tuple[int, int, int],
    words: tuple[Array, Array, Array, Array],
) -> int:
    """Fill words, and return how many there are. Each bank takes the edge with the first row left, if that lies in the window.

    Args:
        sorted_edges: edges by bank and row, where each bank begins in them, the row and the group of destinations of each edge.
        left: edges of each group of destinations. Counted down.
        sizes: rows of the window, words that lie between a destination's last edge and its drain at least, number of rows.
        words: filled: edge of each bank, or -1; group that is drained, or -1; rows that are needed, first row that is needed afterwards.
    """
    order, bank_ptr, rows, group = sorted_edges
    window, lag, num_rows = sizes
    edges, drained, needs, releases = words
    num_banks, num_groups = len(bank_ptr) - 1, len(left)
    position = bank_ptr[:-1].copy()
    finished = np.zeros(num_groups, dtype=np.int64)
    oldest, num_words, next_group, num_left = 0, 0, 0, len(order)
    while next_group < num_groups:
        ready = left[next_group] == 0 and num_words - finished[next_group] >= lag
        if ready or num_left == 0:
            drained[num_words] = next_group
            next_group += 1
        else:
            for bank in range(num_banks):
                if position[bank] == bank_ptr[bank + 1]:
                    continue
                edge = order[position[bank]]
                if rows[edge] >= oldest + window:
                    continue
                edges[num_words, bank] = edge
                position[bank] += 1
                num_left -= 1
                needs[num_words] = max(needs[num_words], rows[edge] + 1)
                left[group[edge]] -= 1
                finished[group[edge]] = num_words + 1
            oldest = num_rows
            for bank in range(num_banks):
                if position[bank] < bank_ptr[bank + 1]:
                    oldest = min(oldest, rows[order[position[bank]]])
        releases[num_words] = oldest
        num_words += 1
    return num_words

"""Numbering: the vertices of a mini-batch get local ids, in the order in which they appear.

One numbering serves all hops of a batch. The seeds come first, so the destinations of every hop are the first of its sources.

A hash table finds the local id of a vertex. It is an array of pairs, vertex and local id, with open addressing. The local ids do not
depend on its size, so a table that has grown serves the next batch as it is. Pairs are far apart in memory, so they are prefetched
for some edges at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sagann.graph.random_numbers import GOLDEN
from sagann.jit import Array, compiled
from sagann.kernels.edge.cpu.block import prefetcher

EMPTY = -1
# Number of edges whose pairs are prefetched before the first of them is looked up.
_AHEAD = 128

_prefetch = prefetcher("i8", 1)


def new_table(num_slots: int, dtype: np.dtype[Any]) -> Array:
    """An uninitialised table; the number of slots is a power of 2, the dtype that of the ids of the graph."""
    return np.empty(2 * num_slots, dtype=dtype)


@compiled(inline="always")
def _hashing(num_slots: int, num_vertices: int) -> Any:
    """Factor and shift that give a vertex its first slot. If all vertices have a slot, each one has its own."""
    bits = 0
    while 1 << bits < num_slots:
        bits += 1
    if num_slots >= num_vertices:
        return np.uint64(1), np.uint64(0)
    return GOLDEN, np.uint64(64 - bits)


@compiled(inline="always")
def _slot(vertex: Any, factor: Any, shift: Any) -> Any:
    return (np.uint64(vertex) * factor) >> shift


@compiled()
def _number(vertex: Any, ids: Array, num_ids: int, table: Array, factor: Any, shift: Any) -> Any:
    """The local id of a vertex, which is ``num_ids`` if the vertex is new.

    Whether a vertex is new cannot be predicted, so there is no branch: pair and id are written in either case.
    """
    one = np.uint64(1)
    last = np.uint64(len(table) // 2 - 1)
    slot = _slot(vertex, factor, shift)
    local = np.int64(table[(slot << one) + one])
    while not ((local == EMPTY) | (table[slot << one] == vertex)):
        slot = (slot + one) & last
        local = np.int64(table[(slot << one) + one])
    local += np.int64(local == EMPTY) * (num_ids - local)
    table[slot << one] = vertex
    table[(slot << one) + one] = local
    ids[num_ids] = vertex
    return local


@compiled()
def _with_room(ids: Array, num_ids: int, added: int, table: Array, num_vertices: int) -> Array:
    """The table, or a larger one with the same vertices, that is at most half full with ``added`` more vertices."""
    num_slots = len(table) // 2
    while num_slots < num_vertices and 2 * (num_ids + added) > num_slots:
        num_slots *= 2
    if 2 * num_slots == len(table):
        return table
    larger = np.full(2 * num_slots, EMPTY, table.dtype)
    factor, shift = _hashing(num_slots, num_vertices)
    for local in range(num_ids):
        _number(ids[local], ids, local, larger, factor, shift)
    return larger


@compiled()
def number_seeds(seeds: Array, ids: Array, table: Array, num_vertices: int) -> Any:
    """Clear the table and number the seeds: the first position of a seed that stands a second time, or -1; and the table, perhaps a larger one."""
    table[:] = EMPTY
    table = _with_room(ids, 0, len(seeds), table, num_vertices)
    factor, shift = _hashing(len(table) // 2, num_vertices)
    for position in range(len(seeds)):
        if _number(seeds[position], ids, position, table, factor, shift) != position:
            return position, table
    return -1, table


@compiled()
def number_sources(
    indices: Array, positions: Array, ids: Array, num_ids: int, table: Array, num_vertices: int, local_ids: Array
) -> Any:
    """Write the local ids of the sources of the edges at some positions.

    ``ids`` are the ``num_ids`` vertices that have local ids, with room for those that are added and for one more. Returns their number, and the
    table, perhaps a larger one.
    """
    sources = np.empty(_AHEAD, dtype=indices.dtype)
    for first in range(0, len(positions), _AHEAD):
        count = min(_AHEAD, len(positions) - first)
        table = _with_room(ids, num_ids, count, table, num_vertices)
        factor, shift = _hashing(len(table) // 2, num_vertices)
        address, pair_bytes = table.ctypes.data, 2 * table.itemsize
        # One loop for each kind of memory access: the accesses of a short loop overlap.
        for e in range(count):
            sources[e] = indices[np.uint64(positions[first + e])]
        for e in range(count):
            _prefetch(np.int64(address) + np.int64(_slot(sources[e], factor, shift)) * pair_bytes, 0)
        for e in range(count):
            local = _number(sources[e], ids, num_ids, table, factor, shift)
            local_ids[first + e] = local
            num_ids += local == num_ids
    return num_ids, table

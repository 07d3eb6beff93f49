"""Picks: which in-edges of each destination a hop takes.

There are four ways to pick, of one signature: uniform or by weight, without or with replacement. Every destination draws from
a random stream of its own, so its edges depend on the hop's key and the destination alone. Picked edges ascend by position, as in
the graph.

Legend: ``begins`` and ``ends`` are the positions of the destinations' first and past their last in-edges, ``vertices`` their ids
[num_dst]; ``fanout`` is the number of edges to pick, ``key`` the hop's. Each function writes the offsets ``indptr`` [num_dst + 1] and
the ``positions`` of the picked edges, and returns their number.

References:
    Bentley and Floyd, Programming pearls: a sample of brilliance, Communications of the ACM 30(9), 1987 (a uniform sample
    without replacement). Efraimidis and Spirakis, Weighted random sampling with a reservoir, Information Processing Letters
    97(5), 2006 (algorithm A-Res: the edges with the smallest exponential variables, whose rates are the weights).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from sagann.graph.random_numbers import GOLDEN, below, mix, stream_of, unit
from sagann.graph.row_sort import sort_range
from sagann.jit import Array, compiled
from sagann.kernels.edge.cpu.block import I1, emitted

# Up to this number of picks per destination, a sorted list of them is searched from its end. Beyond it, picks are marked in bits.
_LONGEST_LIST = 64
# Bits are read and cleared word by word: a list takes longer if a pick costs less than so many words.
_WORDS_PER_PICK = 4


@emitted(types.int64, types.uint64)
def _lowest_bit(builder: ir.IRBuilder, _signature: Any, word: ir.Value) -> ir.Value:
    """Position of the lowest bit that is set; ``word`` is not 0."""
    return builder.cttz(word, ir.Constant(I1, 1))


@compiled()
def find_rows(indptr: Array, vertices: Array, fanout: int, replace: bool, begins: Array, ends: Array) -> int:
    """Write the destinations' ranges of in-edges, and return the largest number of edges that picks may have together.

    The offsets are far apart in memory. A loop that does nothing else waits for several of them at once.
    """
    total = 0
    for row in range(len(vertices)):
        vertex = vertices[row]
        begin, end = indptr[vertex], indptr[vertex + 1]
        begins[row], ends[row] = begin, end
        if replace:
            total += fanout if end > begin else 0
        else:
            total += min(fanout, end - begin)
    return total


@compiled()
def pick_uniform(
    begins: Array, ends: Array, vertices: Array, fanout: int, key: Any, indptr: Array, positions: Array
) -> int:
    """Pick ``fanout`` different in-edges, each set of them with equal probability; all edges where there are no more."""
    words = np.zeros(_LONGEST_LIST * _WORDS_PER_PICK, dtype=np.uint64)
    at = 0
    for row in range(len(vertices)):
        indptr[row] = at
        begin, degree = begins[row], ends[row] - begins[row]
        if degree <= fanout:
            for e in range(degree):
                positions[at + e] = begin + e
            at += degree
            continue
        picked = positions[at : at + fanout]
        state = stream_of(key, vertices[row])
        num_words = (degree + 63) >> 6
        if fanout <= _LONGEST_LIST and num_words > _WORDS_PER_PICK * fanout:
            _pick_in_list(begin, degree, state, picked)
        else:
            if num_words > len(words):
                words = np.zeros(2 * num_words, dtype=np.uint64)
            _pick_in_bits(begin, degree, state, words[:num_words], picked)
        at += fanout
    indptr[len(vertices)] = at
    return at


@compiled()
def _pick_in_list(begin: int, degree: int, state: Any, picked: Array) -> None:
    """Floyd's algorithm, with the edges picked so far as a sorted list."""
    count = len(picked)
    for num_picked in range(count):
        # Edges up to `last` compete in this round. `last` itself does so for the first time.
        last = degree - count + num_picked
        state += GOLDEN
        position = begin + below(mix(state), last + 1)
        at = num_picked
        while at > 0 and picked[at - 1] > position:
            at -= 1
        if at > 0 and picked[at - 1] == position:
            at, position = num_picked, begin + last
        for moved in range(num_picked, at, -1):
            picked[moved] = picked[moved - 1]
        picked[at] = position


@compiled()
def _pick_in_bits(begin: int, degree: int, state: Any, words: Array, picked: Array) -> None:
    """Floyd's algorithm, with the edges picked so far as bits; ``words`` are 0 before and after."""
    one, low_bits = np.uint64(1), np.uint64(63)
    for last in range(degree - len(picked), degree):
        state += GOLDEN
        edge = np.uint64(below(mix(state), last + 1))
        if words[edge >> np.uint64(6)] & (one << (edge & low_bits)):
            edge = np.uint64(last)
        words[edge >> np.uint64(6)] |= one << (edge & low_bits)
    at = 0
    for number in range(len(words)):
        word = words[number]
        while word != np.uint64(0):
            picked[at] = begin + 64 * number + _lowest_bit(word)
            word &= word - one
            at += 1
        words[number] = np.uint64(0)


@compiled()
def pick_uniform_replacing(
    begins: Array, ends: Array, vertices: Array, fanout: int, key: Any, indptr: Array, positions: Array
) -> int:
    """Pick one of the in-edges ``fanout`` times: the same edge may be picked again."""
    at = 0
    for row in range(len(vertices)):
        indptr[row] = at
        begin, degree = begins[row], ends[row] - begins[row]
        if degree > 0:
            state = stream_of(key, vertices[row])
            for e in range(at, at + fanout):
                state += GOLDEN
                positions[e] = begin + below(mix(state), degree)
            at += fanout
    indptr[len(vertices)] = at
    sort_range(indptr, positions, positions[:0], 0, len(vertices))
    return at


@compiled()
def pick_weighted(
    begins: Array,
    ends: Array,
    vertices: Array,
    fanout: int,
    key: Any,
    indptr: Array,
    positions: Array,
    weights: Array,
) -> int:
    """Pick ``fanout`` different in-edges one after the other, each in proportion to its weight among those that are left.

    Every edge draws an exponential variable whose rate is its weight. The smallest variables are kept in a heap, whose root
    is the largest one of them. Edges of weight 0 are never picked. The variable of a uniform number ``u`` is at least
    ``u / weight``, which spares most edges of a long row the logarithm.
    """
    times = np.empty(min(fanout, len(positions)))
    at = 0
    for row in range(len(vertices)):
        indptr[row] = at
        state = stream_of(key, vertices[row])
        count = 0
        for edge in range(begins[row], ends[row]):
            state += GOLDEN
            number, weight = unit(mix(state)), weights[edge]
            if not weight > 0 or (count == fanout and number > times[0] * weight):
                continue
            time = -math.log(1.0 - number) / weight
            if count < fanout:
                positions[at + count], times[count] = edge, time
                count += 1
                if count == fanout:
                    for root in range(count // 2 - 1, -1, -1):
                        _sift_down(times, positions[at : at + count], count, root)
            elif time < times[0]:
                positions[at], times[0] = edge, time
                _sift_down(times, positions[at : at + count], count, 0)
        at += count
    indptr[len(vertices)] = at
    sort_range(indptr, positions, positions[:0], 0, len(vertices))
    return at


@compiled()
def _sift_down(times: Array, edges: Array, count: int, root: int) -> None:
    """Move the root of a heap down until no child is larger."""
    time, edge = times[root], edges[root]
    while 2 * root + 1 < count:
        child = 2 * root + 1
        if child + 1 < count and times[child + 1] > times[child]:
            child += 1
        if not times[child] > time:
            break
        times[root], edges[root] = times[child], edges[child]
        root = child
    times[root], edges[root] = time, edge


@compiled()
def pick_weighted_replacing(
    begins: Array,
    ends: Array,
    vertices: Array,
    fanout: int,
    key: Any,
    indptr: Array,
    positions: Array,
    weights: Array,
) -> int:
    """Pick one of the in-edges ``fanout`` times, in proportion to its weight: the same edge may be picked again.

    A draw is searched for in the sums of the weights. Edges of weight 0 are never picked.
    """
    at, sums = 0, np.empty(64)
    for row in range(len(vertices)):
        indptr[row] = at
        begin, degree, total = begins[row], ends[row] - begins[row], 0.0
        if degree > len(sums):
            sums = np.empty(2 * degree)
        for e in range(degree):
            total += weights[begin + e]
            sums[e] = total
        if total == 0:
            continue
        state = stream_of(key, vertices[row])
        for e in range(at, at + fanout):
            state += GOLDEN
            # Rounded, a product may be the sum of all weights.
            drawn = min(unit(mix(state)) * total, np.nextafter(total, 0.0))
            positions[e] = begin + np.searchsorted(sums[:degree], drawn, side="right")
        at += fanout
    indptr[len(vertices)] = at
    sort_range(indptr, positions, positions[:0], 0, len(vertices))
    return at

"""Picks of in-edges on a CUDA device: uniform ones, without and with replacement. Needs triton, which the rest of sagann does not.

The random numbers are those of :mod:`sagann.graph.random_numbers`, and the edges are those that :mod:`sagann.sampling.picks` picks on the
processor, bit by bit. Every destination has a stream of its own, so programs share nothing.

- Without replacement, a program picks for some destinations at once, by Floyd's algorithm. A destination's picks are the lanes of one row of a tile in
  registers: a pick is compared with all earlier ones in one step.
- With replacement, picks do not depend on each other: each one is a lane.

Legend: p_ pointers, b_ values, o_ offsets, m_ masks.

References:
    Bentley and Floyd, Programming pearls: a sample of brilliance, Communications of the ACM 30(9), 1987.
"""

# Arguments of Triton's functions are tensors where no type is stated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sagann.graph import random_numbers
from sagann.kernels.edge.gpu.layout import power_of_two

MOST_DIFFERENT = 1024
"Most different edges that a destination picks on a device: its picks are one row of a tile."
LANES = 512
"Lanes of a program, where a destination's picks are no more."
GOLDEN = tl.constexpr(int(random_numbers.GOLDEN))
FIRST_FACTOR, SECOND_FACTOR = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)
TO_UNIT = tl.constexpr(random_numbers.TO_UNIT)
# Larger than any number of edges: lanes without a pick are not among the smaller ones.
NO_EDGE = tl.constexpr(2**62)


@triton.jit
def mix(state):
    """:func:`sagann.graph.random_numbers.mix` of unsigned 64-bit lanes."""
    z = (state ^ (state >> 30)) * FIRST_FACTOR
    z = (z ^ (z >> 27)) * SECOND_FACTOR
    return z ^ (z >> 31)


@triton.jit
def stream_of(key, item):
    """:func:`sagann.graph.random_numbers.stream_of`."""
    return mix(key.to(tl.uint64) + item.to(tl.uint64) * GOLDEN)


@triton.jit
def below(bits, end):
    """:func:`sagann.graph.random_numbers.below`."""
    return ((bits >> 11).to(tl.float64) * TO_UNIT * end.to(tl.float64)).to(tl.int64)


@triton.jit(do_not_specialize=["num_rows", "num_picks", "fanout", "p_key"])
def pick_tile(
    p_begins,
    p_degrees,
    p_vertices,
    p_indptr,
    p_positions,
    num_rows,
    num_picks,
    fanout,
    p_key,
    rows: tl.constexpr,
    width: tl.constexpr,
):
    o_row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    m_row = o_row < num_rows
    begin = tl.load(p_begins + o_row, mask=m_row, other=0)
    degree = tl.load(p_degrees + o_row, mask=m_row, other=0)
    state = stream_of(tl.load(p_key), tl.load(p_vertices + o_row, mask=m_row, other=0))
    lane = tl.arange(0, width)[None, :]
    # Destinations with few edges give all of them, and draw in vain.
    m_drawn = (degree > fanout)[:, None]
    b_rank = lane + tl.zeros((rows, width), tl.int32)
    b_picked = tl.where(m_drawn, NO_EDGE, b_rank.to(tl.int64))
    for number in range(fanout):
        # Edges up to `last` compete in this round. `last` itself does so for the first time.
        last = degree - fanout + number
        state += GOLDEN
        edge = below(mix(state), last + 1)
        is_picked = tl.max((b_picked == edge[:, None]).to(tl.int32), 1) > 0
        edge = tl.where(is_picked, last, edge)[:, None]
        # Each pick's rank among the picks so far: no sort is needed in the end.
        m_new = m_drawn & (lane == number)
        num_smaller = tl.sum((b_picked < edge).to(tl.int32), 1)[:, None]
        b_rank += (m_drawn & (lane < number) & (b_picked > edge)).to(tl.int32)
        b_rank = tl.where(m_new, num_smaller, b_rank)
        b_picked = tl.where(m_new, edge, b_picked)
    m_picked = m_row[:, None] & (lane < tl.minimum(degree, fanout)[:, None])
    o_edge = tl.load(p_indptr + o_row, mask=m_row, other=0)[:, None] + b_rank
    b_position = (begin[:, None] + b_picked).to(p_positions.dtype.element_ty)
    tl.store(p_positions + o_edge, b_position, mask=m_picked & (o_edge < num_picks))


@triton.jit(do_not_specialize=["num_picks", "fanout", "p_key"])
def draw_tile(p_begins, p_degrees, p_vertices, p_positions, num_picks, fanout, p_key, tile: tl.constexpr):
    o_pick = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    m_pick = o_pick < num_picks
    o_row = o_pick // fanout
    begin = tl.load(p_begins + o_row, mask=m_pick, other=0)
    degree = tl.load(p_degrees + o_row, mask=m_pick, other=1)
    number = (o_pick - o_row * fanout + 1).to(tl.uint64)
    state = stream_of(tl.load(p_key), tl.load(p_vertices + o_row, mask=m_pick, other=0)) + number * GOLDEN
    position = begin + below(mix(state), degree)
    tl.store(p_positions + o_pick, position.to(p_positions.dtype.element_ty), mask=m_pick)


def pick_different(
    begins: Tensor, degrees: Tensor, vertices: Tensor, fanout: int, key: Tensor, indptr: Tensor, positions: Tensor
) -> None:
    """Pick ``fanout`` different in-edges of each destination; all edges where there are no more.

    Work is queued on the current stream. All tensors lie on the device; under TRITON_INTERPRET=1 they lie on the CPU. Of each destination are
    given: the position of its first in-edge, its number of in-edges, its id, and in ``indptr`` the offset of its picks. ``positions`` is written,
    int32 or int64, ascending within a destination, as far as it has room. ``fanout`` is at most :data:`MOST_DIFFERENT`; ``key`` is an int64 scalar.
    """
    assert 1 <= fanout <= MOST_DIFFERENT
    if not len(positions):
        return
    width = power_of_two(fanout)
    rows = max(1, LANES // width)
    with torch.cuda.device_of(positions):
        pick_tile[(triton.cdiv(len(vertices), rows),)](
            begins,
            degrees,
            vertices,
            indptr,
            positions,
            len(vertices),
            len(positions),
            fanout,
            key,
            rows=rows,
            width=width,
            num_warps=4,
        )


def draw(begins: Tensor, degrees: Tensor, vertices: Tensor, fanout: int, key: Tensor, positions: Tensor) -> None:
    """Draw one of the in-edges of each destination, which has some, ``fanout`` times: ``positions`` [num_dst * fanout] are in the order drawn."""
    if not len(positions):
        return
    with torch.cuda.device_of(positions):
        draw_tile[(triton.cdiv(len(positions), LANES),)](
            begins, degrees, vertices, positions, len(positions), fanout, key, tile=LANES, num_warps=4
        )

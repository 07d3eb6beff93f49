"""Extrema in Triton kernels.

Legend: p_ pointers, b_ values read, o_ offsets, m_ masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from sagann.kernels.edge.gpu import lanes as moves
from sagann.kernels.edge.gpu.reductions.launch import lanes_of, launch, row_of, slots_of
from sagann.kernels.edge.gpu.reductions.writer import Writer


class Extremum(Writer):
    """The best value of a group's edges, and which edge attains it."""

    worst: str
    "The initial value, which every number replaces."
    beyond: str
    "The comparison that says whether a value beats another one."
    reduce: str
    "The function that brings the edges of a tile together."

    def start(self) -> list[str]:
        # Each edge of a tile begins at its own position, so that the first counts where nothing beats the worst.
        first = self.writer.edges("tl.arange(0, EDGES)", len(self.shape))
        return [
            f"best_{self.number} = {self.full(self.shape, self.worst)}",
            f"where_{self.number} = tl.broadcast_to({first}, {moves.block('EDGES', self.shape)})",
        ]

    def update(self) -> list[str]:
        best, value = f"best_{self.number}", self.value
        isnan = f"(({value} != {value}) & ({best} == {best}))"
        position = self.writer.edges("(edge - begin).to(tl.int32)", len(self.shape))
        return [
            f"better = {self.m_edge} & (({value} {self.beyond} {best}) | {isnan})",
            f"where_{self.number} = tl.where(better, {position}, where_{self.number})",
            f"{best} = tl.where(better, {value}, {best})",
        ]

    def finish(self) -> list[str]:
        number = self.number
        best = f"tl.where(end > begin, extremum_{number}, 0.0)"
        ids = (
            f"tl.where(end > begin, device.first_of(best_{number}, where_{number}, extremum_{number}) + begin, -1)"
        )
        return [
            f"extremum_{number} = {self.reduce}(best_{number}, 0, keep_dims=True)",
            self.stored(f"p_row_{self.result}", "at", self.shape, self.num_lanes, best),
            self.stored(f"p_row_{self.result + 1}", "at", self.shape, self.num_lanes, ids),
        ]

    def resume(self) -> list[str]:
        number = self.number
        best, place = f"extremum_{number}", f"place_{number}"
        isnan = f"(({best} != {best}) & (known_{number} == known_{number}))"
        ids = place if self.writer.function.at == "dst" else f"tl.load(p_edge_ids + {place}).to(tl.int64)"
        return [
            f"{best} = {self.reduce}(best_{number}, 0, keep_dims=True)",
            f"{place} = device.first_of(best_{number}, where_{number}, {best}) + begin",
            f"known_{number} = {self.loaded(self.result, self.shape, self.num_lanes)}",
            f"edge_{number} = {self.loaded(self.result + 1, self.shape, self.num_lanes)}",
            f"better = (edge_{number} < 0) | ({best} {self.beyond} known_{number}) | {isnan}",
            f"edge_{number} = tl.where(better, {ids} + edge_offset, edge_{number})",
            f"known_{number} = tl.where(better, {best}, known_{number})",
            self.stored(f"p_row_{self.result}", "at", self.shape, self.num_lanes, f"known_{number}"),
            self.stored(f"p_row_{self.result + 1}", "at", self.shape, self.num_lanes, f"edge_{number}"),
        ]


class Maximum(Extremum):
    """The largest value."""

    worst, beyond, reduce = 'float("-inf")', ">", "device.amax"


class Minimum(Extremum):
    """The smallest value."""

    worst, beyond, reduce = 'float("inf")', "<", "device.amin"


@triton.jit
def merge_extremum(
    p_groups: tl.tensor,
    p_slots: tl.tensor,
    p_out: tl.tensor,
    p_slots_where: tl.tensor,
    p_out_where: tl.tensor,
    num_lanes: tl.tensor,
    largest: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """The extremum of a group's slots, and the edge of the first that attains it."""
    first, last, target = slots_of(p_groups)
    o_lane, m_lane = lanes_of(num_lanes, tile)
    best = tl.load(p_slots + first * num_lanes + o_lane, mask=m_lane, other=0)
    where = tl.load(p_slots_where + first * num_lanes + o_lane, mask=m_lane, other=0)
    for slot in range(first + 1, last):
        b_value = tl.load(p_slots + slot * num_lanes + o_lane, mask=m_lane, other=0)
        b_where = tl.load(p_slots_where + slot * num_lanes + o_lane, mask=m_lane, other=0)
        beyond = b_value > best if largest else b_value < best
        better = beyond | ((b_value != b_value) & (best == best))
        best = tl.where(better, b_value, best)
        where = tl.where(better, b_where, where)
    tl.store(row_of(p_slots, p_out, target, num_lanes) + o_lane, best, mask=m_lane)
    tl.store(row_of(p_slots_where, p_out_where, target, num_lanes) + o_lane, where, mask=m_lane)


def merge_extrema(largest: bool, groups: Tensor, pairs: Sequence[Tensor]) -> None:
    """Merge one level of a tree."""
    launch(merge_extremum, groups, pairs, largest=largest)

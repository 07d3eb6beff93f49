"""Moments in Triton kernels: every edge of a tile has a mean and a spread of its own, which meet at the end of the row.

Legend: p_ pointers, b_ values read, o_ offsets, m_ masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from sagann.kernels.edge.gpu.expressions import TYPES
from sagann.kernels.edge.gpu.reductions.launch import lanes_of, launch, row_of, slots_of
from sagann.kernels.edge.gpu.reductions.writer import Writer


class Moments(Writer):
    """The sum of squared deviations, the mean, and the number of a group's edges."""

    def before(self) -> list[str]:
        super().before()
        self.writer.offsets(())
        return []

    def start(self) -> list[str]:
        return [
            f"spread_{self.number} = {self.full(self.shape, '0.0')}",
            f"mean_{self.number} = {self.full(self.shape, '0.0')}",
        ]

    def update(self) -> list[str]:
        spread, mean = f"spread_{self.number}", f"mean_{self.number}"
        # So many edges has every lane of a tile met, but for those beyond the last edge.
        return [
            f"met = ((first - begin) // EDGES + 1).to({TYPES[self.kind]})",
            f"distance = tl.where({self.m_edge}, {self.value} - {mean}, 0.0)",
            f"{mean} += distance / met",
            f"{spread} += tl.where({self.m_edge}, distance * ({self.value} - {mean}), 0.0)",
        ]

    def together(self) -> list[str]:
        """Lines that bring the lanes of a tile together."""
        number, rank = self.number, len(self.shape)
        count = self.writer.aligned("met", 0, rank)
        return [
            # How many edges each lane has met.
            f"met = ((end - begin - o_edge + EDGES - 1) // EDGES).to({TYPES[self.kind]})",
            f"count = (end - begin).to({TYPES[self.kind]})",
            f"mean = tl.sum(mean_{number} * {count}, 0, keep_dims=True) / tl.maximum(count, 1.0)",
            f"apart = mean_{number} - mean",
            f"spread = tl.sum(spread_{number} + apart * apart * {count}, 0, keep_dims=True)",
        ]

    def finish(self) -> list[str]:
        return [*self.together(), *self.written()]

    def resume(self) -> list[str]:
        known = self.writer.aligned("known", 0, len(self.shape), trailing=True)
        share = self.writer.aligned("share", 0, len(self.shape), trailing=True)
        return [
            *self.together(),
            f"known = {self.loaded(self.result + 2, (), 1)}",
            f"known_mean = {self.loaded(self.result + 1, self.shape, self.num_lanes)}",
            "share = count / (known + count)",
            "apart = mean - known_mean",
            f"spread += {self.loaded(self.result, self.shape, self.num_lanes)} + apart * apart * {share} * {known}",
            f"mean = known_mean + apart * {share}",
            "count = known + count",
            # No warp may write the number before all have read it.
            *(["tl.debug_barrier()"] if self.writer.layout.warps > 1 else []),
            *self.written(),
        ]

    def written(self) -> list[str]:
        """Lines that write the state of a row."""
        first, second, third = (f"p_row_{self.result + place}" for place in range(3))
        return [
            self.stored(first, "at", self.shape, self.num_lanes, "spread"),
            self.stored(second, "at", self.shape, self.num_lanes, "mean"),
            self.stored(third, "at", (), 1, "count"),
        ]


@triton.jit
def merge_moment(
    p_groups: tl.tensor,
    p_slots: tl.tensor,
    p_out: tl.tensor,
    p_slots_mean: tl.tensor,
    p_out_mean: tl.tensor,
    p_slots_count: tl.tensor,
    p_out_count: tl.tensor,
    num_lanes: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Spread, mean and number of a group's slots."""
    first, last, target = slots_of(p_groups)
    o_lane, m_lane = lanes_of(num_lanes, tile)
    spread = tl.zeros([tile], p_slots.dtype.element_ty)
    mean = tl.zeros([tile], p_slots.dtype.element_ty)
    count = tl.zeros([tile], p_slots.dtype.element_ty)
    for slot in range(first, last):
        b_spread = tl.load(p_slots + slot * num_lanes + o_lane, mask=m_lane, other=0)
        b_mean = tl.load(p_slots_mean + slot * num_lanes + o_lane, mask=m_lane, other=0)
        b_count = tl.load(p_slots_count + slot + o_lane * 0)
        share = b_count / tl.maximum(count + b_count, 1.0)
        apart = b_mean - mean
        spread += b_spread + apart * apart * share * count
        mean += apart * share
        count += b_count
    tl.store(row_of(p_slots, p_out, target, num_lanes) + o_lane, spread, mask=m_lane)
    tl.store(row_of(p_slots_mean, p_out_mean, target, num_lanes) + o_lane, mean, mask=m_lane)
    # All lanes write the same number.
    tl.store(row_of(p_slots_count, p_out_count, target, 1) + o_lane * 0, count)


def merge_moments(groups: Tensor, pairs: Sequence[Tensor]) -> None:
    """Merge one level of a tree."""
    launch(merge_moment, groups, pairs)

"""Sums in Triton kernels: of a group's edges, of all edges, and of none.

Legend: p_ pointers, o_ offsets, m_ masks; a merge has slots on axis 0 and lanes on axis 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from sagann.kernels.edge.gpu import lanes as moves
from sagann.kernels.edge.gpu.expressions import EDGE
from sagann.kernels.edge.gpu.reductions.launch import lanes_of, launch, row_of, slots_of
from sagann.kernels.edge.gpu.reductions.writer import Writer

# Slots at a time.
SLOTS = tl.constexpr(8)


class Total(Writer):
    """The sum of an item's edges; those of all items are summed afterwards."""

    def before(self) -> list[str]:
        return [*super().before(), f"sum_{self.number} = {self.full(self.shape, '0.0')}"]

    def update(self) -> list[str]:
        return [f"sum_{self.number} += tl.where({self.m_edge}, {self.value}, 0.0)"]

    def after(self) -> list[str]:
        total = f"tl.sum(sum_{self.number}, 0, keep_dims=True)"
        return [self.stored(f"p_out_{self.result}", "item", self.shape, self.num_lanes, total)]


class Sum(Writer):
    """The sum of a group's edges."""

    def start(self) -> list[str]:
        return [f"sum_{self.number} = {self.full(self.shape, '0.0')}"]

    def update(self) -> list[str]:
        return [f"sum_{self.number} += tl.where({self.m_edge}, {self.value}, 0.0)"]

    def finish(self) -> list[str]:
        total = f"tl.sum(sum_{self.number}, 0, keep_dims=True)"
        return [self.stored(f"p_row_{self.result}", "at", self.shape, self.num_lanes, total)]

    def resume(self) -> list[str]:
        known = self.loaded(self.result, self.shape, self.num_lanes)
        total = f"{known} + tl.sum(sum_{self.number}, 0, keep_dims=True)"
        return [self.stored(f"p_row_{self.result}", "at", self.shape, self.num_lanes, total)]


class EdgeRows(Writer):
    """A row for every edge."""

    def update(self) -> list[str]:
        row = self.writer.edges(f"({self.writer.edge_local} * {self.num_lanes})", len(self.shape))
        at = f"p_out_{self.result} + {row}" + (f" + {self.writer.offsets(self.shape)}" if self.shape else "")
        level = self.writer.masks(self.shape, EDGE)
        # A block of one row is written for each edge.
        value = f"tl.broadcast_to({self.value}, {moves.block('EDGES', self.shape)})"
        return [f"tl.store({at}, {value}, mask={level})"]


@triton.jit
def merge_sum(
    p_groups: tl.tensor, p_slots: tl.tensor, p_out: tl.tensor, num_lanes: tl.tensor, tile: tl.constexpr
) -> None:
    """The sum of a group's slots."""
    first, last, target = slots_of(p_groups)
    o_lane, m_lane = lanes_of(num_lanes, tile)
    total = tl.zeros([SLOTS, tile], p_slots.dtype.element_ty)
    for at in range(first, last, SLOTS):
        slot = at + tl.arange(0, SLOTS).to(tl.int64)
        m_slot = (slot < last)[:, None] & m_lane[None, :]
        total += tl.load(p_slots + (slot * num_lanes)[:, None] + o_lane[None, :], mask=m_slot, other=0)
    tl.store(row_of(p_slots, p_out, target, num_lanes) + o_lane, tl.sum(total, 0), mask=m_lane)


def merge_sums(groups: Tensor, pairs: Sequence[Tensor]) -> None:
    """Merge one level of a tree."""
    launch(merge_sum, groups, pairs)

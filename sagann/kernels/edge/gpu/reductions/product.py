"""Products in Triton kernels.

Legend: p_ pointers, b_ values read, o_ offsets, m_ masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from sagann.kernels.edge.gpu.reductions.launch import lanes_of, launch, row_of, slots_of
from sagann.kernels.edge.gpu.reductions.writer import Writer


class Product(Writer):
    """The product of a group's factors that are not 0, and how many are 0."""

    def start(self) -> list[str]:
        return [
            f"product_{self.number} = {self.full(self.shape, '1.0')}",
            f"zeros_{self.number} = {self.full(self.shape, '0.0')}",
        ]

    def update(self) -> list[str]:
        return [
            f"is_zero = {self.value} == 0.0",
            f"product_{self.number} *= tl.where({self.m_edge} & (is_zero == 0), {self.value}, 1.0)",
            f"zeros_{self.number} += tl.where({self.m_edge} & is_zero, 1.0, 0.0)",
        ]

    def finish(self) -> list[str]:
        return self.written(self.together(), "")

    def resume(self) -> list[str]:
        known = self.loaded(self.result, self.shape, self.num_lanes)
        zeros = self.loaded(self.result + 1, self.shape, self.num_lanes)
        return self.written(f"{known} * {self.together()}", f"{zeros} + ")

    def together(self) -> str:
        """The lanes of a tile brought together."""
        return f"device.product(product_{self.number})"

    def written(self, product: str, known_zeros: str) -> list[str]:
        """Lines that write the state of a row."""
        zeros = f"{known_zeros}tl.sum(zeros_{self.number}, 0, keep_dims=True)"
        return [
            self.stored(f"p_row_{self.result}", "at", self.shape, self.num_lanes, product),
            self.stored(f"p_row_{self.result + 1}", "at", self.shape, self.num_lanes, zeros),
        ]


@triton.jit
def merge_product(
    p_groups: tl.tensor,
    p_slots: tl.tensor,
    p_out: tl.tensor,
    p_slots_zeros: tl.tensor,
    p_out_zeros: tl.tensor,
    num_lanes: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Product and number of zeros of a group's slots."""
    first, last, target = slots_of(p_groups)
    o_lane, m_lane = lanes_of(num_lanes, tile)
    product = tl.full([tile], 1.0, p_slots.dtype.element_ty)
    zeros = tl.zeros([tile], p_slots.dtype.element_ty)
    for slot in range(first, last):
        product *= tl.load(p_slots + slot * num_lanes + o_lane, mask=m_lane, other=1)
        zeros += tl.load(p_slots_zeros + slot * num_lanes + o_lane, mask=m_lane, other=0)
    tl.store(row_of(p_slots, p_out, target, num_lanes) + o_lane, product, mask=m_lane)
    tl.store(row_of(p_slots_zeros, p_out_zeros, target, num_lanes) + o_lane, zeros, mask=m_lane)


def merge_products(groups: Tensor, pairs: Sequence[Tensor]) -> None:
    """Merge one level of a tree."""
    launch(merge_product, groups, pairs)

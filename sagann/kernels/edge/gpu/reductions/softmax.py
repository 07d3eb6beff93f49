"""Softmax in Triton kernels: one pass with a running maximum and denominator.

Legend: p_ pointers, b_ values read, o_ offsets, m_ masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sagann.kernels.edge.function import Output
from sagann.kernels.edge.gpu import device
from sagann.kernels.edge.gpu.expressions import Expressions
from sagann.kernels.edge.gpu.reductions.launch import lanes_of, launch, row_of, slots_of
from sagann.kernels.edge.gpu.reductions.writer import Writer
from sagann.kernels.edge.kinds import lanes


class Softmax(Writer):
    """The mean of a group's edges weighted by the exponentials of their scores, and these weights' scale."""

    def __init__(self, writer: Expressions, output: Output, number: int, result: int) -> None:
        super().__init__(writer, output, number, result)
        score = writer.function.value(output.values[0])
        self.score_shape, self.num_scores = writer.shape(score), lanes(score)

    @property
    def lowest(self) -> str:
        """The least finite number."""
        return repr(float(torch.finfo(torch.float64 if self.kind == "f8" else torch.float32).min))

    def beside(self, score: str) -> str:
        """A block like the score's beside the value's lanes."""
        return self.writer.aligned(score, len(self.score_shape), len(self.shape), trailing=True)

    def before(self) -> list[str]:
        super().before()
        self.writer.offsets(self.score_shape)
        self.writer.mask(self.score_shape)
        return []

    def start(self) -> list[str]:
        return [
            f"top_{self.number} = {self.full(self.score_shape, self.lowest)}",
            f"weight_{self.number} = {self.full(self.score_shape, '0.0')}",
            f"sum_{self.number} = {self.full(self.shape, '0.0')}",
        ]

    def update(self) -> list[str]:
        number = self.number
        score = self.writer.converted(self.output.values[0], self.kind)
        m_edge = self.writer.edges("m_edge", len(self.score_shape))
        return [
            f"top = device.maximum(tl.where({m_edge}, {score}, {self.lowest}), top_{number})",
            f"shrink = device.exp(top_{number} - top)",
            f"weight = tl.where({m_edge}, device.exp({score} - top), 0.0)",
            f"weight_{number} = weight_{number} * shrink + weight",
            f"weighted = tl.where({self.m_edge}, {self.beside('weight')} * {self.value}, 0.0)",
            f"sum_{number} = sum_{number} * {self.beside('shrink')} + weighted",
            f"top_{number} = top",
        ]

    def finish(self) -> list[str]:
        number = self.number
        mean = f"tl.where(end > begin, mean_{number}, 0.0)"
        total = f"tl.sum(sum_{number} * {self.beside('share')}, 0, keep_dims=True)"
        return [
            f"top = device.amax(top_{number}, 0, keep_dims=True)",
            f"share = device.exp(top_{number} - top)",
            f"weight = tl.sum(weight_{number} * share, 0, keep_dims=True)",
            f"mean_{number} = {total} / {self.beside('weight')}",
            *self.written(mean, 'tl.where(end > begin, top, float("-inf"))'),
        ]

    def resume(self) -> list[str]:
        number, heavy = self.number, self.beside("heavy")
        known_weight = self.loaded(self.result + 2, self.score_shape, self.num_scores)
        # Where all scores so far are -inf the mean is 0 / 0, but weighs nothing.
        weighed = f"tl.where({heavy} == 0, 0.0, {heavy} * {self.loaded(self.result, self.shape, self.num_lanes)})"
        return [
            f"known_top = {self.loaded(self.result + 1, self.score_shape, self.num_scores)}",
            f"top = device.maximum(device.amax(top_{number}, 0, keep_dims=True), known_top)",
            f"share = device.exp(top_{number} - top)",
            f"heavy = {known_weight} * device.exp(known_top - top)",
            f"weight = tl.sum(weight_{number} * share, 0, keep_dims=True) + heavy",
            f"total = tl.sum(sum_{number} * {self.beside('share')}, 0, keep_dims=True) + {weighed}",
            # No warp may write the scores' results before all have read them.
            *(["tl.debug_barrier()"] if self.writer.layout.warps > 1 else []),
            *self.written(f"total / {self.beside('weight')}", "top"),
        ]

    def written(self, mean: str, top: str) -> list[str]:
        """Lines that write the state of a row."""
        first, second, third = (f"p_row_{self.result + place}" for place in range(3))
        return [
            self.stored(first, "at", self.shape, self.num_lanes, mean),
            self.stored(second, "at", self.score_shape, self.num_scores, top),
            self.stored(third, "at", self.score_shape, self.num_scores, "weight"),
        ]


@triton.jit
def merge_softmax(
    p_groups: tl.tensor,
    p_slots: tl.tensor,
    p_out: tl.tensor,
    p_slots_top: tl.tensor,
    p_out_top: tl.tensor,
    p_slots_weight: tl.tensor,
    p_out_weight: tl.tensor,
    num_lanes: tl.tensor,
    num_scores: tl.tensor,
    lowest: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """The mean of a group's means, weighted by their softmax denominators, the largest score, and the denominator."""
    first, last, target = slots_of(p_groups)
    o_lane, m_lane = lanes_of(num_lanes, tile)
    # The score's shape begins the value's.
    o_score = o_lane // (num_lanes // num_scores)
    top = tl.full([tile], lowest, p_slots.dtype.element_ty)
    for slot in range(first, last):
        b_top = tl.load(p_slots_top + slot * num_scores + o_score, mask=m_lane, other=lowest)
        top = device.maximum(b_top, top)
    weight = tl.zeros([tile], p_slots.dtype.element_ty)
    total = tl.zeros([tile], p_slots.dtype.element_ty)
    for slot in range(first, last):
        b_top = tl.load(p_slots_top + slot * num_scores + o_score, mask=m_lane, other=lowest)
        b_weight = tl.load(p_slots_weight + slot * num_scores + o_score, mask=m_lane, other=0)
        b_mean = tl.load(p_slots + slot * num_lanes + o_lane, mask=m_lane, other=0)
        share = b_weight * device.exp(b_top - top)
        weight += share
        # Where all scores were -inf the mean is 0 / 0, but weighs nothing.
        total += tl.where(share == 0, 0.0, share * b_mean)
    tl.store(row_of(p_slots, p_out, target, num_lanes) + o_lane, total / weight, mask=m_lane)
    # Lanes of one score write the same number.
    tl.store(row_of(p_slots_top, p_out_top, target, num_scores) + o_score, top, mask=m_lane)
    tl.store(row_of(p_slots_weight, p_out_weight, target, num_scores) + o_score, weight, mask=m_lane)


def merge_means(groups: Tensor, pairs: Sequence[Tensor]) -> None:
    """Merge one level of a tree."""
    launch(merge_softmax, groups, pairs, pairs[2][0].numel(), lowest=torch.finfo(pairs[0].dtype).min)

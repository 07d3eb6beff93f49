r"""Softmax: the mean of the values, weighted by the exponentials of the scores.

The state is the mean :math:`m`, the largest score :math:`t`, and the denominator :math:`w = \sum_e e^{s_e - t}`. Two
states become :math:`t = \max(t_1, t_2)`, :math:`v_i = w_i e^{t_i - t}`, :math:`w = v_1 + v_2`, and
:math:`m = (v_1 m_1 + v_2 m_2) / w`.

Where all scores are -inf the mean is NaN, the largest score is taken for the least finite number, and the denominator
is 0: such a state weighs nothing beside others. The largest score and the denominator are never added up as
logarithms: scores of 1e9 would round the denominator away.

References:
    Milakov and Gimelshein, Online normalizer calculation for softmax, 2018, Sec. 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sagann.kernels.edge.reductions.record import Part, Read, Reduction, beside
from sagann.kernels.gather.naive import gather_denominator, gather_softmax

if TYPE_CHECKING:
    from sagann.kernels.edge.builder import Builder


def _merge(into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    (mean, top, weight), (value, peak, share) = into, part
    highest = torch.maximum(top, peak)
    # Rows without edges have -inf - -inf for an exponent.
    known = torch.where(weight == 0, 0, weight * torch.exp(top - highest))
    more = torch.where(share == 0, 0, share * torch.exp(peak - highest))
    together = known + more

    def weighted(rows: Tensor, weight: Tensor) -> Tensor:
        # What weighs nothing beside others may be 0 / 0.
        weight = beside(weight, rows)
        return torch.where(weight == 0, 0, rows * weight)

    total = beside(together, mean)
    mean.copy_(torch.where(total == 0, mean + value, (weighted(mean, known) + weighted(value, more)) / total))
    top.copy_(highest)
    weight.copy_(together)


def _seeds(b: Builder, values: Sequence[str], reads: Mapping[str, str]) -> dict[str, str]:
    score, message = values
    grad, shape, heads = reads["grad"], b.shape(message), b.shape(score)
    # The denominator divides the gradient and the agreement, so that an edge's weight is one exponential.
    weight = b.op("exp", b.op("sub", score, reads["top"]))
    to_message = b.op("mul", grad, b.reshape(weight, heads + (1,) * (len(shape) - len(heads))))
    agreement = b.op("sum", b.op("mul", grad, message), dims=tuple(range(len(heads), len(shape))))
    to_score = b.op("mul", weight, b.op("sub", agreement, reads["delta"]))
    if score == message:
        return {message: b.op("add", to_message, to_score)}
    return {message: to_message, score: to_score}


SOFTMAX = Reduction(
    name="softmax",
    state=(Part(), Part(of="score", neutral=-math.inf), Part(of="score")),
    num_values=2,
    exponentials=1,
    reads=(Read(), Read(name="top", of="score"), Read(name="delta", of="score")),
    seeds=_seeds,
    reduce=lambda topology, values: (gather_softmax(topology, *values), *gather_denominator(topology, values[0])),
    merge=_merge,
)

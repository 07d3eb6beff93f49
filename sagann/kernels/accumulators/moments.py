"""Variance and standard deviation of the messages, over all of them (not one less), as PyG's aggregations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from sagann.kernels.accumulators.record import Accumulator, Counts, computed
from sagann.kernels.edge.reductions import reduction
from sagann.kernels.gather import naive


def _variance(state: Sequence[Tensor], counts: Counts) -> Tensor:
    return state[0].div_(counts(state[0]))


def _of_variance(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    wide = computed(grad)
    return wide.mul_(2).div_(counts(wide)), *kept


def _deviation(state: Sequence[Tensor], counts: Counts) -> Tensor:
    deviation = _variance(state, counts).clamp_(min=naive.LEAST_VARIANCE).sqrt_()
    return deviation.masked_fill_(deviation <= math.sqrt(naive.LEAST_VARIANCE), 0)


def _of_deviation(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    scaled, deviation = computed(grad), computed(result)
    scaled.div_(counts(scaled)).div_(deviation)
    return scaled.masked_fill_(deviation == 0, 0), *kept


_of_moments = partial(Accumulator, reduction=reduction("moments"), keeps=(1,))
VAR = _of_moments(name="var", gather=naive.gather_var, finish=_variance, arrive=_of_variance)
STD = _of_moments(name="std", gather=naive.gather_std, finish=_deviation, arrive=_of_deviation, reads_result=True)

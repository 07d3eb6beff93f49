"""Softmax-weighted mean of values by their scores."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sagann.kernels.accumulators.record import Accumulator, Counts, computed
from sagann.kernels.edge.reductions import beside, reduction
from sagann.kernels.gather import naive


def _arrive(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    """The gradient over the denominator, the largest score, and the agreement of gradient and result over the denominator."""
    top, denominator = kept
    # Converted as they are copied: an operator on two types would convert them in memory of its own.
    scaled = computed(grad).div_(beside(denominator, grad))
    agreement = computed(result).mul_(scaled)
    # Summed within each head.
    heads = denominator.ndim
    return scaled, top, agreement.flatten(heads).sum(-1) if agreement.ndim > heads else agreement


SOFTMAX = Accumulator(
    name="softmax",
    reduction=reduction("softmax"),
    gather=naive.gather_softmax,
    keeps=(1, 2),
    reads_result=True,
    arrive=_arrive,
)

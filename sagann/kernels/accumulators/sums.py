"""Sum and mean; and concat, which keeps every row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sagann.kernels.accumulators.record import Accumulator, Counts, computed
from sagann.kernels.edge.builder import HALF
from sagann.kernels.edge.reductions import reduction
from sagann.kernels.gather import naive
from sagann.kernels.memory import empty


def _mean(state: Sequence[Tensor], counts: Counts) -> Tensor:
    (total,) = state
    return total.div_(counts(total)) if total.is_floating_point() else total / counts(total)


def _share(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    if grad.dtype in HALF:
        # In half precision a number of edges may be infinite.
        wide = computed(grad)
        return (wide.div_(counts(wide)),)
    return (torch.div(grad, counts(grad), out=empty(grad.shape, grad.dtype, grad.device)),)


SUM = Accumulator(name="sum", reduction=reduction("sum"), gather=naive.gather_sum, is_linear=True)
MEAN = Accumulator(
    name="mean",
    reduction=reduction("sum"),
    gather=naive.gather_mean,
    finish=_mean,
    arrive=_share,
    is_linear=True,
    averages=True,
)
CONCAT = Accumulator(name="concat", reduction=reduction("edge"), gather=naive.gather_concat, is_sized=True)

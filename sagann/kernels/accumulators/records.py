"""Accumulators: one record for each way in which a layer may gather its messages.

An accumulator is a reduction (:mod:`sagann.kernels.edge.reductions`), the step from the reduction's state to the result, and
the tensors that the backward pass reads. Compiler, plan and runtime ask the record. None of them compares names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sagann.kernels import naive
from sagann.kernels.edge.builder import arithmetic_dtype
from sagann.kernels.edge.reductions import Reduction, reduction
from sagann.kernels.memory import empty

Counts = Callable[[Tensor], Tensor]
"""From a tensor with a row per destination to the numbers of in-edges: at least 1 each, of the tensor's type, shaped to
broadcast against the tensor."""


def _first(state: Sequence[Tensor], counts: Counts) -> Tensor:
    return state[0]


def _gradient(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    return (grad.to(arithmetic_dtype(grad.dtype)),)


def _computed(rows: Tensor) -> Tensor:
    """A copy in the type of arithmetic."""
    return empty(rows.shape, arithmetic_dtype(rows.dtype), rows.device).copy_(rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulator:
    """A way to gather messages."""

    name: str
    "Unique name, by which layers choose the accumulator."
    reduction: Reduction
    "How a pass reduces the messages."
    gather: Callable[..., Tensor]
    """Differentiable twin in PyTorch. Arguments: topology, values of the messages [num_edges, ...], and ``max_degree`` where
    the accumulator is sized."""
    finish: Callable[[Sequence[Tensor], Counts], Tensor] = _first
    "From a state to the result; may overwrite the state. Default: the first tensor of the state."
    keeps: tuple[int, ...] = ()
    "Positions of the state's tensors that the backward pass reads."
    passes_kept: bool = False
    "Whether the reduction's backward reads the kept tensors as they are, after those that ``arrive`` gives."
    reads_result: bool = False
    "Whether the backward pass reads the gathered rows."
    arrive: Callable[[Tensor, Sequence[Tensor], Tensor, Counts], tuple[Tensor, ...]] = _gradient
    """From the result's gradient, the kept tensors, the result and the counts to the tensors that the reduction's backward
    reads, in order. With ``passes_kept``, it must not read the kept tensors. Default: the gradient in the type of arithmetic."""
    is_linear: bool = False
    "Whether the gathered rows are linear in the messages."
    averages: bool = False
    "Whether the gathered rows are sums divided by the number of in-edges."
    is_sized: bool = False
    "Whether a gathered row has room for a stated number of in-edges."


def _mean(state: Sequence[Tensor], counts: Counts) -> Tensor:
    (total,) = state
    return total.div_(counts(total)) if total.is_floating_point() else total / counts(total)


def _to_mean(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    if grad.dtype in naive.HALF:
        # A number of in-edges may be infinite in half precision.
        wide = _computed(grad)
        return (wide.div_(counts(wide)),)
    return (torch.div(grad, counts(grad), out=empty(grad.shape, grad.dtype, grad.device)),)


SUM = Accumulator(name="sum", reduction=reduction("sum"), gather=naive.gather_sum, is_linear=True)
_MEAN = Accumulator(
    name="mean",
    reduction=reduction("sum"),
    gather=naive.gather_mean,
    finish=_mean,
    arrive=_to_mean,
    is_linear=True,
    averages=True,
)
_CONCAT = Accumulator(name="concat", reduction=reduction("edge"), gather=naive.gather_concat, is_sized=True)
_MAX = Accumulator(name="max", reduction=reduction("max"), gather=naive.gather_max, keeps=(1,), passes_kept=True)
_MIN = Accumulator(name="min", reduction=reduction("min"), gather=naive.gather_min, keeps=(1,), passes_kept=True)


def _variance(state: Sequence[Tensor], counts: Counts) -> Tensor:
    return state[0].div_(counts(state[0]))


def _to_variance(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    wide = _computed(grad)
    return (wide.mul_(2).div_(counts(wide)),)


def _deviation(state: Sequence[Tensor], counts: Counts) -> Tensor:
    deviation = _variance(state, counts).clamp_(min=naive.LEAST_VARIANCE).sqrt_()
    return deviation.masked_fill_(deviation <= math.sqrt(naive.LEAST_VARIANCE), 0)


def _to_deviation(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    scaled, deviation = _computed(grad), _computed(result)
    scaled.div_(counts(scaled)).div_(deviation)
    return (scaled.masked_fill_(deviation == 0, 0),)


# Both divide by the number of in-edges (not by one less), as PyG does.
_of_moments = partial(Accumulator, reduction=reduction("moments"), keeps=(1,), passes_kept=True)
_VAR = _of_moments(name="var", gather=naive.gather_var, finish=_variance, arrive=_to_variance)
_STD = _of_moments(name="std", gather=naive.gather_std, finish=_deviation, arrive=_to_deviation, reads_result=True)
_SPREAD = _of_moments(
    name="spread", gather=naive.gather_spread, arrive=lambda grad, kept, result, counts: (_computed(grad).mul_(2),)
)


def _product(state: Sequence[Tensor], counts: Counts) -> Tensor:
    product, zeros = state
    return product.masked_fill(zeros > 0, 0)


def _to_product(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    """The gradient that factors other than 0 read, and the gradient that factors of 0 read."""
    product, zeros = kept
    scaled = _computed(grad).mul_(product)
    return scaled.masked_fill(zeros > 0, 0), scaled.masked_fill_(zeros != 1, 0)


_MUL = Accumulator(
    name="mul",
    reduction=reduction("product"),
    gather=naive.gather_mul,
    finish=_product,
    keeps=(0, 1),
    arrive=_to_product,
)


def _to_softmax(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    """The gradient over the denominator, the largest score, and the sum of gradient times result over the denominator."""
    top, denominator = kept
    # The copy converts the type. An operator on two types would convert in memory of its own.
    scaled = _computed(grad).div_(naive.columns(denominator, grad.ndim))
    agreement = _computed(result).mul_(scaled)
    heads = denominator.ndim
    return scaled, top, agreement.flatten(heads).sum(-1) if agreement.ndim > heads else agreement


_SOFTMAX = Accumulator(
    name="softmax",
    reduction=reduction("softmax"),
    gather=naive.gather_softmax,
    keeps=(1, 2),
    reads_result=True,
    arrive=_to_softmax,
)

_ALL = (SUM, _MEAN, _MAX, _MIN, _VAR, _STD, _MUL, _SOFTMAX, _CONCAT)
ACCUMULATORS: Mapping[str, Accumulator] = {record.name: record for record in _ALL}
"The accumulators that a layer may choose, by name."
RECORDS: Mapping[str, Accumulator] = {**ACCUMULATORS, _SPREAD.name: _SPREAD}
"All accumulators, by name."
MOMENTS = "sum+spread, sum"
"""Gather of the moments of rows, from the rows and a one for each edge: the sum of the rows and the sum of their squared deviations from
their mean, side by side, then the number of edges."""

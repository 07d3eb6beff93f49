"""Accumulators: one record for each way in which a layer may gather its messages; and the gather of a layer, by one of them or several.

An accumulator is a reduction (:mod:`sagann.kernels.edge.reductions`), the step from the reduction's state to the result, and
the tensors that the backward pass reads. Compiler, plan and runtime ask the record. None of them compares names.

An edge has one message or several. One accumulator or several reduce each message. The results of one message stand side by
side in the last dimension. The results of several messages are flattened and stand side by side, so a gather always has one
result, the same in memory, over tiles, and streamed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels import naive
from sagann.kernels.edge.builder import arithmetic_dtype
from sagann.kernels.edge.function import EdgeFunction, Output, Shape, read_names
from sagann.kernels.edge.reductions import Reduction, reduction
from sagann.kernels.memory import empty

Counts = Callable[[Tensor], Tensor]
"""From a tensor with a row per destination to the numbers of in-edges: at least 1 each, of the tensor's type, shaped to
broadcast against the tensor."""


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
    finish: Callable[[Sequence[Tensor], Counts], Tensor] = lambda state, counts: state[0]
    "From a state to the result; may overwrite the state. Default: the first tensor of the state."
    keeps: tuple[int, ...] = ()
    "Positions of the state's tensors that the backward pass reads."
    passes_kept: bool = False
    "Whether the reduction's backward reads the kept tensors as they are, after those that ``arrive`` gives."
    reads_result: bool = False
    "Whether the backward pass reads the gathered rows."
    arrive: Callable[[Tensor, Sequence[Tensor], Tensor, Counts], tuple[Tensor, ...]] = (
        lambda grad, kept, result, counts: (grad.to(arithmetic_dtype(grad.dtype)),)
    )
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

SEPARATOR = "+"
"Stands between the names of several accumulators of one message."
MESSAGE_SEPARATOR = ", "
"Stands between the accumulators of several messages."
Names = str | Sequence[str]
"Names of the accumulators of one message: one name, or several."


class Reduced(NamedTuple):
    """One message reduced by one accumulator."""

    accumulator: Accumulator
    "The accumulator."
    values: slice
    "Positions of the message's values among all values of an edge."
    state: slice
    "Positions of the accumulator's tensors in the whole state."


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """The accumulators of a layer's messages."""

    messages: tuple[tuple[Accumulator, ...], ...]
    "Accumulators of each message. Several accumulators of a message reduce the same single value."
    max_degree: int = 0
    "Rows that concat has room for at a destination; 0 for the other accumulators."

    @cached_property
    def reduced(self) -> tuple[Reduced, ...]:
        """Each message by each of its accumulators, in order."""
        found: list[Reduced] = []
        value = state = 0
        for accumulators in self.messages:
            values = slice(value, value + accumulators[0].reduction.num_values)
            for accumulator in accumulators:
                found.append(Reduced(accumulator, values, slice(state, state + len(accumulator.reduction.state))))
                state = found[-1].state.stop
            value = values.stop
        return tuple(found)

    @cached_property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """The accumulators of all messages."""
        return tuple(each.accumulator for each in self.reduced)

    @property
    def name(self) -> str:
        """Names of the accumulators, joined."""
        names = (SEPARATOR.join(each.name for each in accumulators) for accumulators in self.messages)
        return MESSAGE_SEPARATOR.join(names)

    @property
    def is_one(self) -> bool:
        """Whether one message is reduced by one accumulator."""
        return len(self.reduced) == 1

    @property
    def num_values(self) -> int:
        """Number of values of an edge that are read."""
        return self.reduced[-1].values.stop

    @property
    def is_reduced(self) -> bool:
        """Whether edges are reduced to a state that can be merged; concat keeps their rows."""
        return all(accumulator.reduction.rows == "row" for accumulator in self.accumulators)

    @cached_property
    def is_sized(self) -> bool:
        """Whether the result has room for a stated number of in-edges."""
        return any(accumulator.is_sized for accumulator in self.accumulators)

    @property
    def is_linear(self) -> bool:
        """Whether the result is linear in the message, and of its shape."""
        return self.is_one and self.accumulators[0].is_linear

    @property
    def averages(self) -> bool:
        """Whether the result is a sum over the number of in-edges."""
        return self.is_one and self.accumulators[0].averages

    @property
    def names_edges(self) -> bool:
        """Whether a state holds ids of edges."""
        return any(accumulator.reduction.names_edges for accumulator in self.accumulators)

    @cached_property
    def reads_result(self) -> bool:
        """Whether the backward pass reads the result."""
        return any(accumulator.reads_result for accumulator in self.accumulators)

    @cached_property
    def keeps(self) -> tuple[int, ...]:
        """Positions of the state's tensors that the backward pass reads."""
        return tuple(each.state.start + position for each in self.reduced for position in each.accumulator.keeps)

    @cached_property
    def passes_kept(self) -> bool:
        """Whether the backward pass reads tensors of the state, and all of them as they are."""
        keeping = [accumulator for accumulator in self.accumulators if accumulator.keeps]
        return bool(keeping) and all(accumulator.passes_kept for accumulator in keeping)

    def kept_names(self, function: EdgeFunction) -> list[str]:
        """Names of the tensors that :meth:`finish` keeps: where ``passes_kept``, those by which the passes of a backward read them."""
        if not self.passes_kept:
            return [str(position) for position in self.keeps]
        known = zip(self.accumulators, read_names(function), strict=True)
        return [name for each, names in known for name in names[len(names) - len(each.keeps) :]]

    def outputs(self, values: Sequence[str]) -> list[Output]:
        """The outputs of a pass over edges with values of these names."""
        return [
            Output(reduce=each.accumulator.reduction.name, values=tuple(values[each.values]))
            for each in self.reduced
        ]

    def shapes(self, values: Sequence[Sequence[int]]) -> list[Shape]:
        """Feature shape of each message's result, from the feature shapes of an edge's values."""
        shapes: list[Shape] = []
        last = 0
        for accumulators in self.messages:
            last += accumulators[0].reduction.num_values
            message = tuple(values[last - 1])
            if self.is_sized:
                message = (self.max_degree * math.prod(message),)
            elif len(accumulators) > 1:
                message = (*message[:-1], len(accumulators) * message[-1])
            shapes.append(message)
        return shapes

    def shape(self, values: Sequence[Sequence[int]]) -> Shape:
        """Feature shape of the result, from the feature shapes of an edge's values."""
        shapes = self.shapes(values)
        return shapes[0] if len(shapes) == 1 else (sum(map(math.prod, shapes)),)

    def gather(self, topology: Topology, values: Sequence[Tensor]) -> Tensor:
        """Gather edge rows in PyTorch, differentiably."""
        sized = (self.max_degree,) if self.is_sized else ()
        return self._side_by_side(
            [each.accumulator.gather(topology, *values[each.values], *sized) for each in self.reduced]
        )

    def finish(self, state: Sequence[Tensor], counts: Counts) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The result, and the tensors of the state that the backward pass reads. The state may be overwritten."""
        kept = tuple(state[position] for position in self.keeps)
        results = [each.accumulator.finish(state[each.state], counts) for each in self.reduced]
        return self._side_by_side(results), kept

    def arrive(
        self, function: EdgeFunction, grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts
    ) -> dict[str, Tensor]:
        """The tensors that the passes of a backward read besides the inputs of the forward's ``function``, by name.

        ``grad`` may be in half precision. ``kept`` are the tensors that :meth:`finish` returned; where ``passes_kept``, they may be
        left out, and then they are missing in what is returned. Where no accumulator reads the result, ``result`` is any tensor of
        its shape.
        """
        found: dict[str, Tensor] = {}
        known = iter(kept)
        grads, results = self._parts(function, grad), self._parts(function, result)
        for accumulator, names, part, own in zip(
            self.accumulators, read_names(function), grads, results, strict=True
        ):
            own_kept = list(islice(known, len(accumulator.keeps)))
            arrived = accumulator.arrive(part.contiguous(), own_kept, own, counts)
            # A zip that is not strict: kept tensors may be left out.
            found |= dict(zip(names, (*arrived, *own_kept) if accumulator.passes_kept else arrived, strict=False))
        return found

    def split(self, rows: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Cut rows of the result's form, [rows, ...], into a part for each message, of these feature shapes."""
        if len(shapes) == 1:
            return [rows]
        parts = rows.split([math.prod(shape) for shape in shapes], -1)
        return [part.reshape(len(rows), *shape) for part, shape in zip(parts, shapes, strict=True)]

    def _parts(self, function: EdgeFunction, rows: Tensor) -> list[Tensor]:
        """Cut rows of the result's form into a part for each accumulator."""
        if self.is_one:
            return [rows]
        # Outputs of one message read the same values.
        outputs = {each.values.start: output for each, output in zip(self.reduced, function.outputs, strict=True)}
        values = [function.value(name).shape for output in outputs.values() for name in output.values]
        messages = self.split(rows, self.shapes(values))
        return [
            part
            for accumulators, message in zip(self.messages, messages, strict=True)
            for part in (message.chunk(len(accumulators), -1) if len(accumulators) > 1 else [message])
        ]

    def _side_by_side(self, results: Sequence[Tensor]) -> Tensor:
        if len(results) == 1:
            return results[0]
        pending = iter(results)
        parts = [list(islice(pending, len(accumulators))) for accumulators in self.messages]
        messages = [own[0] if len(own) == 1 else torch.cat(own, -1) for own in parts]
        if len(messages) == 1:
            return messages[0]
        return torch.cat([rows.reshape(len(rows), math.prod(rows.shape[1:])) for rows in messages], -1)


def gathering(names: Names | Mapping[str, Names], max_degree: int = 0) -> Gathering:
    """The gather by the accumulators of these names: for one message (one name, several, or several joined by :data:`SEPARATOR`), or for each message
    (a mapping, or one string joined by :data:`MESSAGE_SEPARATOR`). Concat has room for ``max_degree`` rows.
    """
    if isinstance(names, Mapping):
        messages = list(names.values())
    else:
        messages = list(names.split(MESSAGE_SEPARATOR)) if isinstance(names, str) else [names]
    return Gathering(messages=tuple(map(_records, messages)), max_degree=max_degree)


def _records(names: Names) -> tuple[Accumulator, ...]:
    several = names.split(SEPARATOR) if isinstance(names, str) else names
    if unknown := [name for name in several if name not in RECORDS]:
        raise ValueError(f"There is no accumulator '{unknown[0]}'; choose one of {', '.join(ACCUMULATORS)}.")
    return tuple(RECORDS[name] for name in several)

"""Gathering: the gather of a layer, the same in memory, over tiles, and streamed.

An edge has one message or several. One accumulator or several reduce each message. The results of one message stand side by
side in the last dimension. The results of several messages are flattened and stand side by side, so a gather always has one
result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.accumulators.records import ACCUMULATORS, RECORDS, Accumulator, Counts
from sagann.kernels.edge.function import EdgeFunction, Output, Shape, read_names

SEPARATOR = "+"
"Stands between the names of several accumulators of one message."
MESSAGE_SEPARATOR = ", "
"Stands between the accumulators of several messages."
Names = str | Sequence[str]
"Names of the accumulators of one message: one name, or several."


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduced:
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
        found = []
        first_value = first_state = 0
        for accumulators in self.messages:
            last_value = first_value + accumulators[0].reduction.num_values
            for accumulator in accumulators:
                last_state = first_state + len(accumulator.reduction.state)
                found.append(
                    Reduced(
                        accumulator=accumulator,
                        values=slice(first_value, last_value),
                        state=slice(first_state, last_state),
                    )
                )
                first_state = last_state
            first_value = last_value
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
        messages = []
        for accumulators in self.messages:
            own = [next(pending) for _ in accumulators]
            messages.append(own[0] if len(own) == 1 else torch.cat(own, -1))
        return messages[0] if len(messages) == 1 else torch.cat([_flat(each) for each in messages], -1)


def _flat(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


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

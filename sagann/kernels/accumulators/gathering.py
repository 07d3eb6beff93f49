"""Gathering: what a layer's gather means, in memory, over tiles, and streamed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.accumulators.record import Accumulator, Counts
from sagann.kernels.edge.function import EdgeFunction, Output, read_names

SEPARATOR = "+"
"Between the names of several accumulators."


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathering:
    """One accumulator of a message, or several, whose results stand side by side in the last dimension."""

    accumulators: tuple[Accumulator, ...]
    "How messages are gathered. Several take one value each, and reduce it."
    max_degree: int = 0
    "Rows that concat has room for at a destination; 0 for the other accumulators."

    @property
    def name(self) -> str:
        """The accumulators' names, joined."""
        return SEPARATOR.join(accumulator.name for accumulator in self.accumulators)

    @property
    def is_one(self) -> bool:
        """Whether there is one accumulator."""
        return len(self.accumulators) == 1

    @property
    def num_values(self) -> int:
        """How many values of an edge are read."""
        return self.accumulators[0].reduction.num_values

    @property
    def is_reduced(self) -> bool:
        """Whether edges are reduced to a state that can be merged, rather than kept."""
        return all(accumulator.reduction.rows == "row" for accumulator in self.accumulators)

    @property
    def is_sized(self) -> bool:
        """Whether the result has room for a stated number of in-edges."""
        return any(accumulator.is_sized for accumulator in self.accumulators)

    @property
    def is_linear(self) -> bool:
        """Whether the result is linear in the messages, and of their shape."""
        return self.is_one and self.accumulators[0].is_linear

    @property
    def averages(self) -> bool:
        """Whether the result is a sum over the number of in-edges."""
        return self.is_one and self.accumulators[0].averages

    @property
    def names_edges(self) -> bool:
        """Whether a state holds ids of edges, to which the gradient goes."""
        return any(accumulator.reduction.names_edges for accumulator in self.accumulators)

    @property
    def reads_result(self) -> bool:
        """Whether the backward reads the result."""
        return any(accumulator.reads_result for accumulator in self.accumulators)

    @property
    def keeps(self) -> tuple[int, ...]:
        """Positions of the tensors of the state that the backward reads."""
        return tuple(here.start + position for accumulator, here in self.states() for position in accumulator.keeps)

    def states(self) -> Iterator[tuple[Accumulator, slice]]:
        """Where each accumulator's tensors stand among those of the state."""
        first = 0
        for accumulator in self.accumulators:
            last = first + len(accumulator.reduction.state)
            yield accumulator, slice(first, last)
            first = last

    def outputs(self, values: Sequence[str]) -> list[Output]:
        """The outputs of a pass over edges with these values."""
        return [Output(reduce=each.reduction.name, values=tuple(values)) for each in self.accumulators]

    def shape(self, message: Sequence[int]) -> tuple[int, ...]:
        """Feature shape of the result, from the messages'."""
        if self.is_sized:
            return (self.max_degree * math.prod(message),)
        return tuple(message) if self.is_one else (*message[:-1], len(self.accumulators) * message[-1])

    def gather(self, topology: Topology, values: Sequence[Tensor]) -> Tensor:
        """Gather edge rows in PyTorch, differentiably."""
        sized = (self.max_degree,) if self.is_sized else ()
        return _side_by_side([each.gather(topology, *values, *sized) for each in self.accumulators])

    def finish(self, state: Sequence[Tensor], counts: Counts) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The result, and the tensors of the state that the backward reads.

        Args:
            state: all tensors of a state; used up.
            counts: of the rows.
        """
        kept = tuple(state[position] for position in self.keeps)
        return _side_by_side([each.finish(state[here], counts) for each, here in self.states()]), kept

    def arrive(
        self, function: EdgeFunction, grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts
    ) -> dict[str, Tensor]:
        """What the backward's passes read besides the forward's inputs, by name.

        Args:
            function: the forward's pass.
            grad: of the result; in half precision too.
            kept: what :meth:`finish` gave.
            result: what was gathered, where the accumulators read it; else any tensor of its shape.
            counts: of the rows.
        """
        found: dict[str, Tensor] = {}
        known = iter(kept)
        grads, results = self._split(grad), self._split(result)
        for accumulator, names, part, own in zip(
            self.accumulators, read_names(function), grads, results, strict=True
        ):
            own_kept = [next(known) for _ in accumulator.keeps]
            found |= dict(zip(names, accumulator.arrive(part.contiguous(), own_kept, own, counts), strict=True))
        return found

    def _split(self, rows: Tensor) -> Sequence[Tensor]:
        """What belongs to each accumulator."""
        return [rows] if self.is_one else rows.chunk(len(self.accumulators), -1)


def _side_by_side(results: Sequence[Tensor]) -> Tensor:
    return results[0] if len(results) == 1 else torch.cat(list(results), -1)

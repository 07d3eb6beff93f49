"""Gathering: what a layer's gather means, in memory, over tiles, and streamed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.accumulators.record import Accumulator, Counts
from sagann.kernels.edge.function import EdgeFunction, Output, read_names


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathering:
    """The accumulator of a gather."""

    accumulator: Accumulator
    "How messages are gathered."
    max_degree: int = 0
    "Rows that concat has room for at a destination; 0 for the other accumulators."

    @property
    def is_reduced(self) -> bool:
        """Whether edges are reduced to a state that can be merged, rather than kept."""
        return self.accumulator.reduction.rows == "row"

    @property
    def moves_to_one_edge(self) -> bool:
        """Whether each number of the gradient goes to one edge, whose id is kept."""
        return self.accumulator.reduction.names_edges

    def outputs(self, values: Sequence[str]) -> list[Output]:
        """The outputs of a pass over edges with these values."""
        return [Output(reduce=self.accumulator.reduction.name, values=tuple(values))]

    def shape(self, message: Sequence[int]) -> tuple[int, ...]:
        """Feature shape of the result, from the messages'."""
        return (self.max_degree * math.prod(message),) if self.accumulator.is_sized else tuple(message)

    def gather(self, topology: Topology, values: Sequence[Tensor]) -> Tensor:
        """Gather edge rows in PyTorch, differentiably."""
        sized = (self.max_degree,) if self.accumulator.is_sized else ()
        return self.accumulator.gather(topology, *values, *sized)

    def finish(self, state: Sequence[Tensor], counts: Counts) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The result, and the tensors of the state that the backward reads.

        Args:
            state: all tensors of a state; used up.
            counts: of the rows.
        """
        kept = tuple(state[position] for position in self.accumulator.keeps)
        return self.accumulator.finish(state, counts), kept

    def arrive(
        self, function: EdgeFunction, grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts
    ) -> dict[str, Tensor]:
        """What the backward's passes read besides the forward's inputs, by name.

        Args:
            function: the forward's pass.
            grad: of the result; in half precision too.
            kept: what :meth:`finish` gave.
            result: what was gathered, where the accumulator reads it; else any tensor.
            counts: of the rows.
        """
        (names,) = read_names(function)
        return dict(zip(names, self.accumulator.arrive(grad, kept, result, counts), strict=True))

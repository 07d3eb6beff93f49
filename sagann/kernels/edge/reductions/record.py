"""Reduction: one record for each way in which the rows of a group of edges become one.

A **state** is what a reduction keeps of the edges so far: a few tensors with a row per group. A pass makes one, a pass
that continues goes on from one, and states of the same rows are merged. What no edge has reached holds every tensor's
neutral number, which is also what a row without edges has in the end.

The record states the tensors of the state, and both formulas in PyTorch. Each dialect has its own formulas beside it
(:mod:`sagann.kernels.edge.cpu.reductions`, :mod:`sagann.kernels.edge.gpu.reductions`), found by the record's name; a
dialect without one raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from sagann.graph.topology import Topology

if TYPE_CHECKING:
    from sagann.kernels.edge.builder import Builder


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One tensor of a state."""

    of: Literal["value", "score", "row"] = "value"
    "Whose feature shape a row of the tensor has: the value's, the score's, or that of a single number."
    neutral: float = 0.0
    "Number in every entry of the tensor before the first edge."
    is_edge: bool = False
    "Whether the tensor's entries are ids of edges."


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """One tensor that the backward's passes read besides the forward's inputs, with a row for each row of the result."""

    name: str = "grad"
    "Unique among those of the reduction."
    of: Literal["value", "score"] = "value"
    "Whose feature shape a row has."
    is_edge: bool = False
    "Whether the tensor's entries are ids of edges."


Seeds = Callable[["Builder", Sequence[str], Mapping[str, str]], dict[str, str]]
"""From a builder, the names of an edge's values, and the names of what is read: the gradient of each value, by value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """How the rows of a group of edges become one."""

    name: str
    "Unique name."
    state: tuple[Part, ...]
    "The tensors of the state, in the order in which a pass returns them; the first is the result."
    num_values: Literal[1, 2] = 1
    "How many values of an edge are read: one, or a score and a value."
    rows: Literal["row", "edge", "item"] = "row"
    "What a result has a row for: each group, each edge, or each work item, whose rows are summed to one."
    registers: int = 1
    "Vector registers that the state takes in a kernel, for as many lanes as the value has in one."
    exponentials: int = 0
    "Exponentials for each lane of the score, in estimates of work."
    reads: tuple[Read, ...] = (Read(),)
    "What the backward reads; an accumulator makes these tensors from the gradient of what was gathered."
    seeds: Seeds = lambda builder, values, reads: {values[-1]: reads["grad"]}
    "The gradients of an edge's values; by default the value's is that of the result."
    reduce: Callable[[Topology, Sequence[Tensor]], tuple[Tensor, ...]]
    "The state of every destination's in-edges, from their rows in CSC order; ids of edges are positions, int64."
    merge: Callable[[Sequence[Tensor], Sequence[Tensor]], None]
    "Merges the second state into the first, in place; tensors keep their dtypes."

    @property
    def names_edges(self) -> bool:
        """Whether the state depends on the ids of the edges."""
        return any(part.is_edge for part in self.state)


def add(into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    """Merge states whose tensors are sums."""
    for known, more in zip(into, part, strict=True):
        known.add_(more)


def beside(score: Tensor, rows: Tensor) -> Tensor:
    """A tensor whose shape begins the rows', so that it broadcasts against them."""
    return score.reshape(*score.shape, *(1,) * (rows.ndim - score.ndim))

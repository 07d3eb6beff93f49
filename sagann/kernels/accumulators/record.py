"""Accumulator: one record for each way in which a layer may gather its messages.

An accumulator is a reduction (:mod:`sagann.kernels.edge.reductions`), what becomes of its state in the end, and what its
backward reads. Compiler, plan and runtime ask the record; none of them compares names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from sagann.kernels.edge.builder import arithmetic_dtype
from sagann.kernels.edge.reductions import Reduction
from sagann.kernels.memory import empty

Counts = Callable[[Tensor], Tensor]
"In-edges of every row of a tensor, at least 1, in its type, such that they broadcast against it."


def first(state: Sequence[Tensor], counts: Counts) -> Tensor:
    """The first tensor of the state is the result."""
    return state[0]


def gradient(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    """The backward reads the gradient as it arrives, and what was kept."""
    return grad.to(arithmetic_dtype(grad.dtype)), *kept


def computed(grad: Tensor) -> Tensor:
    """A copy in the type that is computed in."""
    return empty(grad.shape, arithmetic_dtype(grad.dtype), grad.device).copy_(grad)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulator:
    """A way to gather messages."""

    name: str
    "Unique name, by which layers choose it."
    reduction: Reduction
    "How a pass reduces the messages."
    gather: Callable[..., Tensor]
    "The twin in PyTorch, differentiable: topology, the messages' values [num_edges, ...], and ``max_degree`` where it is sized."
    finish: Callable[[Sequence[Tensor], Counts], Tensor] = first
    "From a state to the result; the state is used up."
    keeps: tuple[int, ...] = ()
    "Positions of the tensors of the state that the backward reads."
    reads_result: bool = False
    "Whether the gather's backward reads the gathered rows."
    arrive: Callable[[Tensor, Sequence[Tensor], Tensor, Counts], tuple[Tensor, ...]] = gradient
    """From the result's gradient, what was kept, the result where it is read, and the counts: the tensors that the
    reduction's backward reads, in order."""
    is_linear: bool = False
    "Whether the gathered rows are linear in the messages."
    averages: bool = False
    "Whether the gathered rows are sums divided by the number of in-edges."
    is_sized: bool = False
    "Whether a gathered row has room for a stated number of in-edges."

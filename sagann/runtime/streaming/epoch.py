"""Epoch: the inputs and results of one epoch of a captured model, besides blocks, and what each device has of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.fx import GraphModule

from sagann.compiler.program import Stage
from sagann.errors import InputError, first_line
from sagann.graph.feature_store import FeatureStore
from sagann.graph.large_arrays import Allocate
from sagann.kernels.edge.builder import arithmetic_dtype
from sagann.kernels.seeds import Seed
from sagann.runtime.moments import Moments

LossOf = Callable[[Tensor, slice], Tensor]
"Gives the loss of some vertices from their rows of the model's result and their range of ids; a sum over vertices."


@dataclass(kw_only=True, slots=True)
class Epoch:
    """Inputs and results of one epoch."""

    x: FeatureStore
    "Features of all vertices, outside of the device's memory."
    parameters: Sequence[Tensor]
    "Parameters in the program's order; detached leaves, so that gradients are collected here."
    trains: bool
    "Whether there is a backward."
    seeds: Sequence[Seed] = ()
    "Of dropouts and random gathers, by their numbers."
    seed: int = 0
    "Of other random numbers."
    loss_of: LossOf | None = None
    "Loss of an interval's rows, where the loss is computed with the result."
    allocate: Allocate | None = None
    "Makes the tensor of the result; None where it is to lie in memory."
    out: Tensor | None = None
    "The result, once it is complete."
    loss_dtype: torch.dtype | None = None
    "Type of the loss that the caller gets."
    upstream: FeatureStore | None = None
    "Gradient of the result, where the caller brings it: on the device that computes, or on the host where several do."
    of_x: Tensor | None = None
    "The features' gradient."
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    "What each device has of the epoch, by its name. The caller's parameters lie on the first device."
    sums: Sequence[Sums] = ()
    "Sums over all intervals, in the parts that are added at the end, in this order: one for each device to which intervals are dealt."

    @property
    def first(self) -> Replica:
        """What the first device has."""
        return next(iter(self.replicas.values()))

    def result(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Room for the result, on the first device. The caller may modify it."""
        if self.out is None:
            if self.allocate is None:
                self.out = torch.empty(shape, dtype=dtype, device=self.first.device)
            else:
                self.out = self.allocate(tuple(shape), dtype)
        return self.out

    def parameter_gradients(self, names: Sequence[str], derived: Sequence[str]) -> list[Tensor | None]:
        """The gradients of the parameters, including those through ``derived`` values, which depend on parameters alone."""
        shared, (sums,) = self.first.shared, self.sums
        of_shared = {name: sums.of_shared[name] for name in (*names, *derived) if name in sums.of_shared}
        derived = [name for name in derived if name in of_shared and shared[name].requires_grad]
        wanted = [leaf for leaf in self.parameters if leaf.requires_grad]
        through: dict[int, Tensor] = {}
        if derived and wanted:
            found = torch.autograd.grad(
                [shared[name] for name in derived],
                wanted,
                [of_shared[name].to(shared[name].dtype) for name in derived],
                allow_unused=True,
            )
            through = {id(leaf): grad for leaf, grad in zip(wanted, found, strict=True) if grad is not None}
        gradients: list[Tensor | None] = []
        for name, leaf in zip(names, self.parameters, strict=True):
            parts = [part for part in (of_shared.get(name), through.get(id(leaf))) if part is not None]
            gradients.append(sum(parts[1:], parts[0]).to(leaf.dtype) if parts and leaf.requires_grad else None)
        return gradients


@dataclass(kw_only=True, slots=True)
class Replica:
    """What the steps of one device read besides blocks."""

    device: torch.device
    stages: Sequence[Stage]
    "The program's stages, which make their tensors on the device."
    shared: dict[str, Tensor] = field(default_factory=dict)
    "Parameters, what depends on them alone, and means of all rows, by name."
    seeds: Sequence[Seed] = ()
    "The epoch's seeds, where they lie in memory in that of the device."
    moments: dict[int, Moments] = field(default_factory=dict)
    "Means and variances of all rows that BatchNorms read, by number of the link, once they are complete."
    of_moments: dict[int, Tensor] = field(default_factory=dict)
    "Gradients of these means and scales, [2, C], once they are complete."


def summed(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sums of tensors of the same names, in order."""
    found: dict[str, Tensor] = {}
    for name, tensor in chain.from_iterable(each.items() for each in parts):
        found[name] = found[name] + tensor if name in found else tensor
    return found


def stage_on(stage: Stage, device: torch.device) -> Stage:
    """The stage as a device runs it. A trace names the device of what an operator makes, as of ``torch.full_like``."""

    def is_named(each: object) -> bool:
        return isinstance(each, torch.device)

    if not any(is_named(each) for node in stage.module.graph.nodes for each in node.kwargs.values()):
        return stage
    graph = deepcopy(stage.module.graph)
    for node in graph.nodes:
        node.kwargs = {name: device if is_named(each) else each for name, each in node.kwargs.items()}
    return replace(stage, module=GraphModule(stage.module, graph))


@dataclass(kw_only=True, slots=True)
class Sums:
    """What steps of some intervals add up, on the device of these intervals."""

    loss: Tensor | None = None
    "Loss of the intervals so far, in float32 at least."
    moments: dict[int, Moments] = field(default_factory=dict)
    "Means and variances of their rows so far, by number of the link."
    of_shared: dict[str, Tensor] = field(default_factory=dict)
    "Gradients of what is shared, so far, in float32 at least."

    def add_loss(self, loss: Tensor) -> None:
        """Add the loss of an interval."""
        part = loss.detach().to(arithmetic_dtype(loss.dtype))
        self.loss = part if self.loss is None else self.loss + part

    def add_shared(self, name: str, gradient: Tensor | None) -> None:
        """Add to the gradient of what is shared."""
        if gradient is not None:
            known = self.of_shared.get(name)
            wide = gradient.to(arithmetic_dtype(gradient.dtype))
            self.of_shared[name] = wide if known is None else known + wide


def loss_of_rows(loss_of: LossOf, rows: Tensor, vertices: slice) -> Tensor:
    """The loss of an interval's rows, which are a leaf.

    A function that changes the rows in place, gives no scalar or reads something else that is trained is refused.
    """
    try:
        with torch.enable_grad():
            loss = loss_of(rows, vertices)
    except RuntimeError as error:
        if "leaf Variable that requires grad is being used in an in-place operation" not in str(error):
            raise
        raise InputError(
            f"loss_of changes the rows that it is given in place: {first_line(error)} (in StreamedModel.loss)",
            hint="Compute a new tensor (z = z * 2, not z *= 2 or z.mul_(2)), or work on z.clone().",
        ) from error
    _check_loss(loss, rows)
    return loss


def _check_loss(loss: object, rows: Tensor) -> None:
    if not isinstance(loss, Tensor) or loss.ndim or not loss.is_floating_point():
        found = f"{loss.dtype} {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise InputError(
            f"the loss of an interval is no scalar: {found}, expected a floating tensor of shape [] (in "
            "StreamedModel.loss)",
            hint="Return the sum of the vertices' losses.",
        )
    pending, seen = [loss.grad_fn], set[Node]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable") and node.variable is not rows:
            raise InputError(
                "the loss of an interval depends on a tensor that is trained, besides the model's result: a "
                f"leaf of shape {tuple(node.variable.shape)} (in StreamedModel.loss)",
                hint="Add terms of parameters to what loss() returns, or call the model and compute the loss of its result.",
            )
        pending += [parent for parent, _ in node.next_functions]

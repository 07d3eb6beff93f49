"""Synchronise: one loss of all trainers, whose gradient is the sum of theirs, in the order of the trainers.

Each trainer's loss is the mean over its seeds, times its part of all seeds. So the sum is the mean over the iteration's seeds, and its gradient
that of one large batch. The paper averages the gradients, which is the same only where all shares are equal.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. II-B and III (synchronous SGD).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sagann.errors import TrainerError
from sagann.hybrid.trainer import Found


def synchronised(found: Mapping[str, Found], parameters: Sequence[Tensor], iteration: str) -> Tensor:
    """The loss of all trainers, with its gradient by the parameters of the model that is trained.

    Raises:
        TrainerError: a trainer gave numbers that are not finite, and another one did not.
    """
    losses = [each.loss.to(torch.float64) for each in found.values()]
    finite = {name: _is_finite(each) for name, each in found.items()}
    if any(finite.values()) and not all(finite.values()):
        name = next(name for name, is_finite in finite.items() if not is_finite)
        raise TrainerError(
            f"trainer '{name}' gave numbers that are not finite while propagating {iteration}: its loss is "
            f"{found[name].loss.item():.6g}, and the others' numbers are finite (in trainer '{name}')",
            hint="If one vertex has such a feature, correct the data; otherwise leave this trainer out of --devices.",
        )
    gradients = [_added([each.gradients[number] for each in found.values()]) for number in range(len(parameters))]
    trained = [
        (gradient, parameter)
        for gradient, parameter in zip(gradients, parameters, strict=True)
        if gradient is not None and parameter.requires_grad
    ]
    loss = torch.stack(losses).sum()
    if not trained:
        return loss
    summed, of = zip(*trained, strict=True)
    known: Tensor = _Known.apply(loss, summed, *of)  # type: ignore[no-untyped-call]
    return known


def _is_finite(found: Found) -> bool:
    gradients = [each for each in found.gradients if each is not None]
    return bool(torch.isfinite(found.loss)) and all(bool(torch.isfinite(each).all()) for each in gradients)


def _added(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of the parts that there are, in order, as a new tensor."""
    total: Tensor | None = None
    for part in parts:
        if part is not None:
            total = part.clone() if total is None else total.add_(part)
    return total


class _Known(torch.autograd.Function):
    """A number whose gradient by some parameters is known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(gradient * grad.to(gradient.dtype) for gradient in ctx.gradients)

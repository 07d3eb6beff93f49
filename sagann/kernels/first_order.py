"""Backward functions that refuse to be differentiated again.

With PyTorch's ``once_differentiable``, a gradient of a gradient is zero where the incoming gradient is a constant. Here the
gradients stay attached to the graph, at a function whose backward raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from sagann.errors import InputError

Saved = tuple[Tensor, ...]
"Tensors of ``ctx.save_for_backward``; None where None was saved."
Gradients = tuple[Tensor | None, ...]


def first_order_only(backward: Callable[[Any, Saved, Tensor], Gradients]) -> Callable[[Any, Tensor], Gradients]:
    """Make the backward of an autograd function run without recording, and refuse a second derivative.

    The saved tensors are an argument, because a checkpoint allows no second read, and other hooks load them anew each time.
    """

    @functools.wraps(backward)
    def guarded(ctx: Any, grad: Tensor) -> Gradients:
        recording = torch.is_grad_enabled()
        saved: Saved = ctx.saved_tensors
        kind = grad.device.type
        # The forward runs without autocast.
        with (
            torch.no_grad(),
            torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext(),
        ):
            results = backward(ctx, saved, grad)
        known = (tensor for tensor in (*saved, grad) if tensor is not None)
        anchor = next((tensor for tensor in known if tensor.requires_grad), None)
        if not recording or anchor is None:
            return results
        refuse: Callable[..., Tensor] = _Refusal.apply
        return tuple(None if result is None else refuse(result, anchor) for result in results)

    return guarded


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, anchor: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise InputError(
            "a gradient of a gradient was asked for: create_graph = True (in a compiled layer or a streamed model)",
            hint="Call the layer or model itself, not streamed, inside "
            "`with sagann.saga.using_engine(sagann.saga.NaiveEngine()):`.",
        )

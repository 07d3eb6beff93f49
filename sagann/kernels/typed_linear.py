"""Typed linear: each row through the linear map of its type. Rows are grouped by type, one matrix product for each type.

The map is one operator of PyTorch's registry (``sagann::typed_linear``), so a trace shows one node with independent rows. The
compiler moves the map from the edges to the vertices where possible (:mod:`sagann.compiler.typed`).

References:
    Ma et al., NGra, 2018, Fig. 12: A(edge.data) applied to edge.src.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import checks

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def typed_linear(x: Tensor, types: Tensor, weight: Tensor) -> Tensor:
    """Multiply each row by the matrix of its type: ``out[i] = x[i] @ weight[types[i]]``.

    Args:
        x: [rows, F].
        types: integer [rows], from 0 to T - 1.
        weight: [T, F, F'].
    Returns:
        [rows, F'].
    Raises:
        InputError: a type is out of range, types are not integers, or the shapes do not fit.
    Example:
        >>> weight = torch.stack([torch.eye(2), 10 * torch.eye(2)])
        >>> typed_linear(torch.ones(2, 2), torch.tensor([1, 0]), weight)
        tensor([[10., 10.],
                [ 1.,  1.]])
    """
    if x.ndim != 2 or types.shape != x.shape[:1] or weight.ndim != 3 or weight.shape[1] != x.shape[1]:
        raise InputError(
            f"the shapes of a typed linear map do not fit: x {list(x.shape)}, types {list(types.shape)}, "
            f"weight {list(weight.shape)} (in typed_linear)",
            hint="Pass x [rows, F], types [rows] and weight [T, F, F'].",
        )
    if types.dtype not in _INTEGERS:
        raise InputError(
            f"types of a typed linear map are not integers: {types.dtype}, expected torch.int64 or a narrower "
            "integer (in typed_linear)",
            hint="Convert them with .to(torch.int64).",
        )
    return _typed_linear(x, types, weight)


@torch.library.custom_op("sagann::typed_linear", mutates_args=())
def _typed_linear(x: Tensor, types: Tensor, weight: Tensor) -> Tensor:
    out = x.new_zeros(len(x), weight.shape[2])
    for kind, rows in _rows_of_types(types, len(weight)):
        out[rows] = x[rows] @ weight[kind]
    return out


@torch.library.custom_op("sagann::typed_linear_weight_grad", mutates_args=())
def _weight_grad(grad: Tensor, x: Tensor, types: Tensor, num_types: int) -> Tensor:
    out = x.new_zeros(num_types, x.shape[1], grad.shape[1])
    for kind, rows in _rows_of_types(types, num_types):
        out[kind] = x[rows].T @ grad[rows]
    return out


def _rows_of_types(types: Tensor, num_types: int) -> list[tuple[int, Tensor]]:
    """The rows of each type that occurs, in ascending order."""
    check_types(types, num_types)
    order = torch.argsort(types, stable=True)
    counts = torch.bincount(types, minlength=num_types).tolist()
    return [(kind, rows) for kind, rows in enumerate(order.split(counts)) if len(rows)]


def check_types(types: Tensor, num_types: int) -> None:
    """Refuse types out of range."""
    checks.check_types(types, num_types, where=checks.numbered("typed_linear", "row"))


@_typed_linear.register_fake
def _(x: Tensor, types: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


@_weight_grad.register_fake
def _(grad: Tensor, x: Tensor, types: Tensor, num_types: int) -> Tensor:
    return x.new_empty(num_types, x.shape[1], grad.shape[1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    x, types, weight = ctx.saved_tensors
    grad_x = _typed_linear(grad, types, weight.mT) if ctx.needs_input_grad[0] else None
    grad_weight = _weight_grad(grad, x, types, len(weight)) if ctx.needs_input_grad[2] else None
    return grad_x, None, grad_weight


_typed_linear.register_autograd(_backward, setup_context=_save)


def _backward_of_weight_grad(ctx: Any, to_weights: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    grad, x, types = ctx.saved_tensors
    to_grad = _typed_linear(x, types, to_weights) if ctx.needs_input_grad[0] else None
    to_x = _typed_linear(grad, types, to_weights.mT) if ctx.needs_input_grad[1] else None
    return to_grad, to_x, None, None


_weight_grad.register_autograd(_backward_of_weight_grad, setup_context=_save)

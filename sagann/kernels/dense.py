"""Dense work of many rows: linear maps, by one matrix or by the matrix of each row's type, and what overwrites their results.

:func:`linear` takes memory from the pool, and multiplies rows in blocks that fit the caches. Where wide rows get a gradient, PyTorch's
product of all rows is slower than products of blocks, and the gradient of a weight, a product over the rows, is slower than the sum of
products over parts of the rows.

:func:`typed_linear` groups rows by type: one matrix product for each type. The map is one operator of PyTorch's registry
(``sagann::typed_linear``), so a trace shows one node with independent rows. The compiler moves the map from the edges to the vertices
where possible (:mod:`sagann.compiler.typed`).

References:
    Ma et al., NGra, 2018, Fig. 12: A(edge.data) applied to edge.src.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import checks
from sagann.kernels.first_order import Saved, first_order_only
from sagann.kernels.memory import SMALLEST_BYTES, empty

if TYPE_CHECKING:
    from sagann.kernels.feature_rows import FeatureRows

BLOCK_BYTES = 5 << 20
"Bytes of operand and result in a block: the caches of two cores."
NUM_PARTS = 8
"Number of parts of the rows, in the gradient of a weight."
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def linear(x: Tensor | FeatureRows, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear``, to rounding."""
    if not isinstance(x, Tensor):
        return x.linear(weight, bias)
    num_bytes = x.dtype.itemsize * (x.numel() // max(1, x.shape[-1])) * max(x.shape[-1], len(weight))
    # PyTorch accumulates half precision in its own way.
    exact = x.dtype in (torch.float32, torch.float64) and x.dtype == weight.dtype
    if x.ndim != 2 or x.device.type != "cpu" or num_bytes < SMALLEST_BYTES or not exact:
        return F.linear(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def block_rows(x: Tensor, out_dim: int) -> int:
    """Number of rows of ``x`` in a block of :data:`BLOCK_BYTES`, with ``out_dim`` results for each row."""
    return max(1, BLOCK_BYTES // (x.dtype.itemsize * (x.shape[1] + out_dim)))


def multiply(rows: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write ``rows @ matrix + bias`` to ``out``."""
    if bias is None:
        torch.mm(rows, matrix, out=out)
    else:
        torch.addmm(bias, rows, matrix, out=out)


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    out = empty((len(x), matrix.shape[1]), x.dtype)
    step = block_rows(x, out.shape[1])
    for rows, into in zip(x.split(step), out.split(step), strict=True):
        multiply(rows, matrix, bias, into)
    return out


def _inner_product(grad: Tensor, x: Tensor) -> Tensor:
    """``grad.T @ x``, as the sum of a few products that threads compute side by side."""
    size = len(x) // NUM_PARTS
    if size < min(x.shape[1], grad.shape[1]):
        return torch.mm(grad.t(), x)
    parts = [rows[: NUM_PARTS * size].view(NUM_PARTS, size, rows.shape[1]) for rows in (grad, x)]
    total = torch.bmm(parts[0].transpose(1, 2), parts[1]).sum(0)
    return total.addmm_(grad[NUM_PARTS * size :].t(), x[NUM_PARTS * size :])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wanted_x, wanted_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if wanted_weight else None, weight if wanted_x else None)
        return _product(x, weight.t(), bias)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = saved
        wanted_x, wanted_weight, wanted_bias = ctx.needs_input_grad
        return (
            _product(grad, weight, None) if wanted_x else None,
            _inner_product(grad, x) if wanted_weight else None,
            grad.sum(0) if wanted_bias else None,
        )


def relu_(x: Tensor) -> Tensor:
    """``torch.relu_``, whose gradient takes memory from the pool."""
    out: Tensor = _Relu.apply(x)  # type: ignore[no-untyped-call]
    return out


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x.relu_())
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = saved
        into = empty(grad.shape, grad.dtype, grad.device)
        return (torch.ops.aten.threshold_backward.grad_input(grad, out, 0, grad_input=into),)


def add_(x: Tensor, y: Tensor) -> Tensor:
    """``x + y`` in the memory of ``x``."""
    return x.add_(y)


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


def _save_operands(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])


def _backward_of_typed(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    x, types, weight = ctx.saved_tensors
    grad_x = _typed_linear(grad, types, weight.mT) if ctx.needs_input_grad[0] else None
    grad_weight = _weight_grad(grad, x, types, len(weight)) if ctx.needs_input_grad[2] else None
    return grad_x, None, grad_weight


_typed_linear.register_autograd(_backward_of_typed, setup_context=_save_operands)


def _backward_of_weight_grad(ctx: Any, to_weights: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    grad, x, types = ctx.saved_tensors
    to_grad = _typed_linear(x, types, to_weights) if ctx.needs_input_grad[0] else None
    to_x = _typed_linear(grad, types, to_weights.mT) if ctx.needs_input_grad[1] else None
    return to_grad, to_x, None, None


_weight_grad.register_autograd(_backward_of_weight_grad, setup_context=_save_operands)

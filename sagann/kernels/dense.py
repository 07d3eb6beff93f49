"""Dense work of many rows: results take memory from the pool, and rows are multiplied in blocks that fit the caches.

Where wide rows get a gradient, PyTorch's product of all rows is slower than products of blocks, and the gradient of a weight, a
product over the rows, is slower than the sum of products over parts of the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.kernels.first_order import Saved, first_order_only
from sagann.kernels.memory import SMALLEST_BYTES, empty

if TYPE_CHECKING:
    from sagann.kernels.feature_rows import FeatureRows

BLOCK_BYTES = 5 << 20
"Bytes of operand and result in a block: the caches of two cores."
NUM_PARTS = 8
"Number of parts of the rows, in the gradient of a weight."


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

"""Composites: operators of PyTorch in terms of simple ones, for the passes over edges.

The branch that is not taken must not overflow: its derivative, 0 times infinity, would be NaN. PyTorch's decompositions
are taken where they obey this rule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import get_decompositions

from sagann.compiler.trace import is_rows

_aten = torch.ops.aten


def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    negative = torch.where(x > 0, 0.0, x)
    return torch.where(x > 0, x * scale, torch.expm1(negative * input_scale) * (alpha * scale))


def _leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    # One factor for both branches, so that the backward is one multiplication as well.
    return x * torch.where(x > 0, torch.ones_like(x), slope)


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    scaled = x * beta
    linear = scaled > threshold
    return torch.where(linear, x, torch.log1p(torch.exp(torch.where(linear, 0.0, scaled))) / beta)


def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    # The absolute value by hand: at 0 its slope must be 1, for that of the whole to be 1/2.
    negative = x < 0
    small, size = torch.where(negative, x, 0.0), torch.where(negative, -x, x)
    return small - torch.log1p(torch.exp(-size)), x


def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    # At a bound the slope is 1, as in PyTorch, and NaN stays.
    if low is not None:
        x = torch.where(x < low, low, x)
    if high is not None:
        x = torch.where(x > high, high, x)
    return x


def _hardtanh(x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    # At a bound the slope is 0, unlike that of clamp.
    x = torch.where(x <= low, low, x)
    return torch.where(x >= high, high, x)


def _hardsigmoid(x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0.0, torch.where(x >= 3, 1.0, (x + 3) / 6))


def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.where(x > 0, 0.0, x) * weight)


def _threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    return torch.where(x <= threshold, value, x) if x.is_floating_point() else NotImplemented


def _softshrink(x: Tensor, size: float = 0.5) -> Tensor:
    return torch.where((x >= -size) & (x <= size), 0.0, x - torch.sign(x) * size)


def _round(x: Tensor) -> Tensor:
    # Halves go to the even neighbour.
    low = torch.floor(x)
    odd = torch.floor(low * 0.5) * 2 != low
    return torch.where((x - low > 0.5) | ((x - low == 0.5) & odd), low + 1, low)


def _root(x: Tensor, power: float = 0.5) -> Tensor:
    """A root with slope 0 at 0, which PyTorch uses for norms and deviations."""
    zero = x == 0
    inner = torch.where(zero, 1.0, x)
    return torch.where(zero, 0.0, torch.sqrt(inner) if power == 0.5 else inner**power)


def _vector_norm(
    x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    if not dim:
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    size = torch.abs(x)
    if order == math.inf:
        return torch.amax(size, dim, keepdim)
    if order == -math.inf:
        return torch.amin(size, dim, keepdim)
    if order == 0:
        return (x != 0).to(x.dtype).sum(dim, keepdim=keepdim)
    if order == 1:
        return size.sum(dim, keepdim=keepdim)
    if order == 2:
        return _root((x * x).sum(dim, keepdim=keepdim))
    return _root(_root(size, order).sum(dim, keepdim=keepdim), 1 / order) if order > 0 else NotImplemented


def _std(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    if not dim:
        return NotImplemented
    return _root(_var(x, dim, correction=correction, keepdim=keepdim))


def _logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    largest = torch.amax(x, dim, keepdim=True).detach()
    largest = torch.where(torch.abs(largest) == math.inf, 0.0, largest)
    total = torch.log(torch.exp(x - largest).sum(dim, keepdim=True)) + largest
    return total if keepdim else total.squeeze(dim)


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    if not dim:
        return NotImplemented
    return torch.sum(x, dim, keepdim=keepdim, dtype=dtype) / math.prod(x.shape[each] for each in dim)


def _var(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    if not dim:
        return NotImplemented
    centred = x - _mean(x, dim, True)
    total = (centred * centred).sum(dim, keepdim=keepdim)
    count = math.prod(x.shape[each] for each in dim)
    return total / max(count - (1 if correction is None else correction), 0)


def _layer_norm(
    x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.ndim - len(shape), x.ndim))
    mean = _mean(x, dims, True)
    centred = x - mean
    scale = torch.rsqrt(_mean(centred * centred, dims, True) + eps)
    out = centred * scale
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, scale


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    # Small products, one per edge. Products of parameters alone are no work of an edge.
    if not is_rows(a.shape[0]):
        return NotImplemented
    return (a.unsqueeze(3) * b.unsqueeze(1)).sum(2)


def most_entries(device: torch.device) -> int:
    """The largest number of entries of a matrix that a fused pass multiplies every edge's row by.

    Such a matrix fits registers and the nearest cache. With a larger one, PyTorch's products over tiles are faster.
    """
    return 8192 if device.type == "cpu" else 1024


def most_lanes(device: torch.device) -> int:
    """The largest number of features of a row that a fused pass has in registers all at once.

    A generated kernel has code for every register, so compiling it takes minutes and gigabytes beyond.
    """
    return 2048 if device.type == "cpu" else 4096


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` of edges' rows, in terms of simple operators if the matrix is small."""
    if weight.numel() > most_entries(weight.device):
        return F.linear(x, weight, bias)
    out = _map(x, weight.t())
    return out if bias is None else out + bias


def _mm(x: Tensor, matrix: Tensor) -> Tensor:
    is_map = is_rows(x.shape[0]) and not any(is_rows(size) for size in (*x.shape[1:], *matrix.shape))
    return _map(x, matrix) if is_map and matrix.numel() <= most_entries(matrix.device) else NotImplemented


def _mv(x: Tensor, vector: Tensor) -> Tensor:
    return (x * vector).sum(-1) if is_rows(x.shape[0]) and not is_rows(vector.shape[0]) else NotImplemented


def _map(x: Tensor, matrix: Tensor) -> Tensor:
    return (x.unsqueeze(-1) * matrix).sum(-2)


def _cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    (a, b, c), (d, e, f) = x.unbind(dim), y.unbind(dim)
    return torch.stack([b * f - c * e, c * d - a * f, a * e - b * d], dim)


def _split_with_sizes(x: Tensor, sizes: list[int], dim: int = 0) -> tuple[Tensor, ...]:
    starts = itertools.accumulate([0, *sizes[:-1]])
    return tuple(torch.narrow(x, dim, start, size) for start, size in zip(starts, sizes, strict=True))


_PYTORCHS = (
    _aten._log_softmax,
    _aten._softmax,
    _aten.addcdiv,
    _aten.addcmul,
    _aten.addmm,
    _aten.addmv,
    _aten.baddbmm,
    _aten.gelu,
    _aten.glu,
    _aten.hardshrink,
    _aten.lerp,
    _aten.logaddexp,
    _aten.masked_fill,
    _aten.mish,
    _aten.rsub,
    _aten.select.int,
    _aten.silu,
    _aten.split.Tensor,
    _aten.stack,
    _aten.unbind.int,
)

COMPOSITES: dict[Any, Callable[..., Any]] = {
    **get_decompositions(_PYTORCHS),
    _aten.elu.default: _elu,
    # NaN stays, and the slope at 0 is 0, as in PyTorch.
    _aten.relu.default: lambda x: torch.where(x <= 0, 0.0, x) if x.is_floating_point() else NotImplemented,
    _aten.leaky_relu.default: _leaky_relu,
    _aten.softplus.default: _softplus,
    _aten.log_sigmoid_forward.default: _log_sigmoid,
    _aten.clamp.default: _clamp,
    _aten.clamp.Tensor: _clamp,
    _aten.clamp_min.default: lambda x, low: _clamp(x, low),
    _aten.clamp_max.default: lambda x, high: _clamp(x, None, high),
    _aten.hardtanh.default: _hardtanh,
    _aten.hardsigmoid.default: _hardsigmoid,
    # Minus infinity gives NaN, as in PyTorch.
    _aten.hardswish.default: lambda x: x * _hardsigmoid(x),
    _aten._prelu_kernel.default: _prelu,
    _aten.threshold.default: _threshold,
    _aten.softshrink.default: _softshrink,
    _aten.ceil.default: lambda x: -torch.floor(-x),
    _aten.trunc.default: lambda x: torch.where(x < 0, -torch.floor(-x), torch.floor(x)),
    _aten.round.default: _round,
    _aten.tan.default: lambda x: torch.sin(x) / torch.cos(x),
    _aten.logsumexp.default: _logsumexp,
    _aten.linalg_vector_norm.default: _vector_norm,
    _aten.norm.ScalarOpt_dim: lambda x, order, *args: _vector_norm(x, 2 if order is None else order, *args),
    _aten.std.correction: _std,
    _aten.mean.dim: _mean,
    _aten.var.correction: _var,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.linalg_cross.default: _cross,
    _aten.bmm.default: _bmm,
    _aten.mm.default: _mm,
    _aten.mv.default: _mv,
    _aten.split_with_sizes.default: _split_with_sizes,
    _aten.square.default: lambda x: x * x,
    _aten.celu.default: lambda x, alpha=1.0: _elu(x, alpha, 1.0, 1 / alpha),
}
"Decompositions for :func:`sagann.compiler.lower.lower`."

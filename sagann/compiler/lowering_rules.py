"""Rules: the translation of each operator of a stage into ops of an edge function.

A rule takes the lowering, the operator's result, which is a fake tensor, and its arguments, and gives the name of the builder's value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.composites import most_entries
from sagann.compiler.lowering import Lowering, NotFusedError, along_rows
from sagann.compiler.operators import DROPOUT, TYPED_LINEAR
from sagann.kernels.edge.function import BINARY, UNARY

_aten = torch.ops.aten


def _unary(op: str) -> Callable[..., str]:
    return lambda low, out, x: low.pointwise(op, out, x)


def _binary(op: str) -> Callable[..., str]:
    def rule(low: Lowering, out: Tensor, x: Any, y: Any, alpha: float = 1) -> str:
        if alpha != 1:
            dtype = low.dtype(out)
            first, scaled = low.alike([low.arg(x, out), low.arg(y, out)], dtype)
            scaled = low.b.op("mul", scaled, alpha, dtype=dtype) if isinstance(scaled, str) else scaled * alpha
            if not isinstance(first, str) and not isinstance(scaled, str):
                scaled = low.b.full(scaled, (), dtype)
            return low.b.op("broadcast", low.b.op(op, first, scaled, dtype=dtype), shape=low.shape(out))
        return low.pointwise(op, out, x, y)

    return rule


def _logical(op: str) -> Callable[..., str]:
    def rule(low: Lowering, out: Tensor, *values: Any) -> str:
        if out.dtype != torch.bool:
            raise NotFusedError(f"operator {low.target} on integers has no fused form")
        return low.pointwise(op, out, *values)

    return rule


def rounded_div(low: Lowering, out: Tensor, x: Any, y: Any, *, rounding_mode: str | None = None) -> str:
    quotient = low.pointwise("div", out, x, y)
    if rounding_mode is not None:
        # PyTorch corrects the rounded quotient by the remainder.
        raise NotFusedError(f"operator {low.target} rounded by '{rounding_mode}' has no fused form")
    return quotient


def _where(low: Lowering, out: Tensor, condition: Tensor, x: Any, y: Any) -> str:
    args = [low.arg(value, out) for value in (condition, x, y)]
    dtype, shape = low.dtype(out), low.shape(out)
    if not isinstance(args[0], str):
        chosen = args[1] if args[0] else args[2]
        chosen = chosen if isinstance(chosen, str) else low.b.full(chosen, shape, dtype)
        return low.b.op("broadcast", chosen, shape=shape)
    for place in (1, 2):
        chosen = args[place]
        args[place] = low.b.cast(chosen, dtype) if isinstance(chosen, str) else low.b.full(chosen, (), dtype)
    return low.b.op("broadcast", low.b.op("where", *args, dtype=dtype), shape=shape)


def _mm(low: Lowering, out: Tensor, x: Tensor, matrix: Tensor) -> str:
    if low.is_row(x) and not low.is_row(matrix):
        rows, columns = matrix.shape
        raise NotFusedError(
            f"a linear map from {rows} to {columns} features on the edges has {rows * columns} entries; "
            f"up to {most_entries(matrix.device)} are fused"
        )
    raise NotFusedError(f"operator {low.target} has no fused form")


def _typed_map(*_: Any) -> str:
    raise NotFusedError(
        "a linear map picked by edge type stays on the edges: only the first of a layer leaves them, by edge data as it is, in "
        "a streamed model where its results are summed or averaged"
    )


def _cast(low: Lowering, out: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> str:
    return low.b.cast(low.name(x), low.dtype(out))


def _same(low: Lowering, out: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> str:
    return low.name(x)


def _detach(low: Lowering, out: Tensor, x: Tensor) -> str:
    # PyTorch's decompositions detach constants, which have no gradient.
    return low.name(x) if low.b.splat(low.name(x)) is not None else low.pointwise("detach", out, x)


def _reshape(low: Lowering, out: Tensor, x: Tensor, *args: Any) -> str:
    # The shape of the result tells which of a parameter's dimensions are meant.
    if low.is_row(x) != low.is_row(out):
        raise low.moves_rows()
    return low.b.reshape(low.name(x), low.shape(out))


def _expand(low: Lowering, out: Tensor, x: Tensor, sizes: Any, *, implicit: bool = False) -> str:
    return low.b.op("broadcast", low.beside_rows(x, out), shape=low.shape(out))


def _permute(low: Lowering, out: Tensor, x: Tensor, dims: Sequence[int]) -> str:
    ndim = x.ndim
    order = [dim % ndim for dim in dims]
    if low.is_row(x):
        if order[0] != 0:
            raise low.moves_rows()
        order = [dim - 1 for dim in order[1:]]
    return low.b.op("permute", low.name(x), dims=tuple(order))


def _transpose(low: Lowering, out: Tensor, x: Tensor, first: int = 0, second: int = 1) -> str:
    order = list(range(x.ndim))
    if len(order) < 2:
        return low.name(x)
    order[first], order[second] = order[second], order[first]
    return _permute(low, out, x, order)


def _slice(
    low: Lowering, out: Tensor, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> str:
    if low.is_row(x) and dim % x.ndim == 0:
        if start in (None, 0) and step == 1 and out.shape[0] == x.shape[0]:
            return low.name(x)
        raise along_rows()
    dim = low.dim(x, dim)
    size = low.b.shape(low.name(x))[dim]
    first = range(size)[slice(start, end, step)]
    return low.b.op(
        "slice", low.name(x), shape=low.shape(out), dim=dim, start=first.start if len(first) else 0, step=step
    )


def _select(low: Lowering, out: Tensor, x: Tensor, dim: int, index: int) -> str:
    dim = low.dim(x, dim)
    shape = low.b.shape(low.name(x))
    kept = (*shape[:dim], 1, *shape[dim + 1 :])
    taken = low.b.op("slice", low.name(x), shape=kept, dim=dim, start=index % shape[dim], step=1)
    return low.b.reshape(taken, low.shape(out))


def _cat(low: Lowering, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> str:
    if any(low.is_row(part) != low.is_row(out) for part in parts):
        raise low.moves_rows()
    dim, dtype = low.dim(out, dim), low.dtype(out)
    names = [low.b.cast(low.name(part), dtype) for part in parts if part.ndim == out.ndim]
    names = [name for name in names if low.b.shape(name)[dim]] or names[:1]
    return low.b.op("cat", *names, dim=dim, dtype=dtype)


def _reduction(op: str) -> Callable[..., str]:
    def rule(
        low: Lowering, out: Tensor, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> str:
        dims = [dims] if isinstance(dims, int) else dims
        if not dims:
            if low.is_row(x):
                raise along_rows()
            dims = range(x.ndim)
        low.check_kind(op, out)
        name = low.b.cast(low.name(x), low.dtype(out))
        name = low.b.op(op, name, dims=tuple(sorted(low.dim(x, dim) for dim in dims)))
        return low.b.reshape(name, low.shape(out)) if keepdim else name

    return rule


def _full(low: Lowering, out: Tensor, *size_and_value: Any, **kwargs: Any) -> str:
    # Constants are folded into their readers, so they are rounded to the result's type here.
    value = torch.full((), size_and_value[-1], dtype=out.dtype, device="cpu").item()
    return low.b.full(value, low.shape(out), low.dtype(out))


def _dropout(low: Lowering, out: Tensor, x: Tensor, p: float, number: int = 0) -> str:
    # A number tells what several functions of one layer draw alike.
    low.salt = number or low.salt + 1
    drawn = low.b.op("random", shape=low.shape(out), dtype=low.dtype(out), p=p, salt=low.salt)
    splat = low.b.splat(low.name(x))
    return low.b.op("mul", low.name(x) if splat is None else splat, drawn)


VIEWS: dict[Any, Callable[..., str]] = {
    _aten.alias.default: _same,
    **dict.fromkeys((_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default), _reshape),
    **dict.fromkeys(
        (_aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.unsqueeze.default), _reshape
    ),
    _aten.expand.default: _expand,
    _aten.permute.default: _permute,
    **dict.fromkeys((_aten.transpose.int, _aten.t.default), _transpose),
    _aten.slice.Tensor: _slice,
    _aten.select.int: _select,
}
"Operators that move no data, and their rules."
# Of a tensor and another tensor or a number, under the same name in PyTorch.
_WITH_NUMBERS = BINARY - {"and", "or", "maximum", "minimum"}

RULES: dict[Any, Callable[..., str]] = {
    **{getattr(_aten, name).default: _unary(name) for name in sorted(UNARY - {"not"})},
    **{
        getattr(getattr(_aten, name), kind): _binary(name)
        for name in sorted(_WITH_NUMBERS)
        for kind in ("Tensor", "Scalar")
        if hasattr(getattr(_aten, name), kind)
    },
    _aten.pow.Tensor_Scalar: _binary("pow"),
    _aten.pow.Tensor_Tensor: _binary("pow"),
    _aten.div.Tensor_mode: rounded_div,
    _aten.div.Scalar_mode: rounded_div,
    _aten.maximum.default: _binary("maximum"),
    _aten.minimum.default: _binary("minimum"),
    _aten.logical_and.default: _binary("and"),
    _aten.logical_or.default: _binary("or"),
    _aten.logical_not.default: _unary("not"),
    _aten.bitwise_and.Tensor: _logical("and"),
    _aten.bitwise_or.Tensor: _logical("or"),
    _aten.bitwise_not.default: _logical("not"),
    _aten.mm.default: _mm,
    TYPED_LINEAR: _typed_map,
    **{getattr(_aten.where, kind): _where for kind in ("self", "Scalar", "ScalarSelf", "ScalarOther")},
    _aten._to_copy.default: _cast,
    _aten.detach.default: _detach,
    _aten.clone.default: _same,
    _aten.lift_fresh_copy.default: _same,
    **VIEWS,
    _aten.cat.default: _cat,
    _aten.sum.dim_IntList: _reduction("sum"),
    _aten.amax.default: _reduction("amax"),
    _aten.amin.default: _reduction("amin"),
    _aten.full.default: _full,
    _aten.scalar_tensor.default: _full,
    DROPOUT: _dropout,
}
"Operators that have a translation, and their rules."

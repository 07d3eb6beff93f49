"""Rules: the translation of each operator of a traced stage into ops of an edge function.

A rule takes the lowering, the operator's node and its arguments, and gives the name of the builder's value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from sagann.compiler.composites import most_entries
from sagann.compiler.lowering import Lowering, NotFusedError, along_rows, moves_rows
from sagann.compiler.operators import DROPOUT, TYPED_LINEAR
from sagann.kernels.edge.function import BINARY, UNARY

_aten = torch.ops.aten


def _unary(op: str) -> Callable[..., str]:
    return lambda low, node, x: low.pointwise(op, node, x)


def _binary(op: str) -> Callable[..., str]:
    def rule(low: Lowering, node: fx.Node, x: Any, y: Any, alpha: float = 1) -> str:
        if alpha != 1:
            dtype = low.dtype(node)
            first, scaled = low.alike([low.arg(x, node), low.arg(y, node)], dtype)
            scaled = low.b.op("mul", scaled, alpha, dtype=dtype) if isinstance(scaled, str) else scaled * alpha
            if not isinstance(first, str) and not isinstance(scaled, str):
                scaled = low.b.full(scaled, (), dtype)
            return low.b.op("broadcast", low.b.op(op, first, scaled, dtype=dtype), shape=low.shape(node))
        return low.pointwise(op, node, x, y)

    return rule


def _logical(op: str) -> Callable[..., str]:
    def rule(low: Lowering, node: fx.Node, *values: Any) -> str:
        if node.meta["val"].dtype != torch.bool:
            raise NotFusedError(f"operator {node.target} on integers has no fused form")
        return low.pointwise(op, node, *values)

    return rule


def rounded_div(low: Lowering, node: fx.Node, x: Any, y: Any, *, rounding_mode: str | None = None) -> str:
    quotient = low.pointwise("div", node, x, y)
    if rounding_mode is not None:
        # PyTorch corrects the rounded quotient by the remainder.
        raise NotFusedError(f"operator {node.target} rounded by '{rounding_mode}' has no fused form")
    return quotient


def _where(low: Lowering, node: fx.Node, condition: fx.Node, x: Any, y: Any) -> str:
    args = [low.arg(value, node) for value in (condition, x, y)]
    dtype, shape = low.dtype(node), low.shape(node)
    if not isinstance(args[0], str):
        chosen = args[1] if args[0] else args[2]
        chosen = chosen if isinstance(chosen, str) else low.b.full(chosen, shape, dtype)
        return low.b.op("broadcast", chosen, shape=shape)
    for place in (1, 2):
        chosen = args[place]
        args[place] = low.b.cast(chosen, dtype) if isinstance(chosen, str) else low.b.full(chosen, (), dtype)
    return low.b.op("broadcast", low.b.op("where", *args, dtype=dtype), shape=shape)


def _mm(low: Lowering, node: fx.Node, x: fx.Node, matrix: fx.Node) -> str:
    if low.is_row(x) and not low.is_row(matrix):
        value = matrix.meta["val"]
        rows, columns = value.shape
        raise NotFusedError(
            f"a linear map from {rows} to {columns} features on the edges has {rows * columns} entries; "
            f"up to {most_entries(value.device)} are fused"
        )
    raise NotFusedError(f"operator {node.target} has no fused form")


def _typed_map(*_: Any) -> str:
    raise NotFusedError(
        "a linear map picked by edge type stays on the edges: only the first of a layer leaves them, by edge data as it is, in "
        "a streamed model where its results are summed or averaged"
    )


def _cast(low: Lowering, node: fx.Node, x: fx.Node, *args: Any, **kwargs: Any) -> str:
    return low.b.cast(low.names[x], low.dtype(node))


def _same(low: Lowering, node: fx.Node, x: fx.Node, *args: Any, **kwargs: Any) -> str:
    return low.names[x]


def _reshape(low: Lowering, node: fx.Node, x: fx.Node, *args: Any) -> str:
    # The shape of the result tells which of a parameter's dimensions are meant.
    if low.is_row(x) != low.is_row(node):
        raise moves_rows(node)
    return low.b.reshape(low.names[x], low.shape(node))


def _expand(low: Lowering, node: fx.Node, x: fx.Node, sizes: Any, *, implicit: bool = False) -> str:
    return low.b.op("broadcast", low.beside_rows(x, node), shape=low.shape(node))


def _permute(low: Lowering, node: fx.Node, x: fx.Node, dims: Sequence[int]) -> str:
    ndim = x.meta["val"].ndim
    order = [dim % ndim for dim in dims]
    if low.is_row(x):
        if order[0] != 0:
            raise moves_rows(node)
        order = [dim - 1 for dim in order[1:]]
    return low.b.op("permute", low.names[x], dims=tuple(order))


def _transpose(low: Lowering, node: fx.Node, x: fx.Node, first: int = 0, second: int = 1) -> str:
    order = list(range(x.meta["val"].ndim))
    if len(order) < 2:
        return low.names[x]
    order[first], order[second] = order[second], order[first]
    return _permute(low, node, x, order)


def _slice(
    low: Lowering, node: fx.Node, x: fx.Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> str:
    if low.is_row(x) and dim % x.meta["val"].ndim == 0:
        if start in (None, 0) and step == 1 and node.meta["val"].shape[0] == x.meta["val"].shape[0]:
            return low.names[x]
        raise along_rows()
    dim = low.dim(x, dim)
    size = low.b.shape(low.names[x])[dim]
    first = range(size)[slice(start, end, step)]
    return low.b.op(
        "slice", low.names[x], shape=low.shape(node), dim=dim, start=first.start if len(first) else 0, step=step
    )


def _select(low: Lowering, node: fx.Node, x: fx.Node, dim: int, index: int) -> str:
    dim = low.dim(x, dim)
    shape = low.b.shape(low.names[x])
    kept = (*shape[:dim], 1, *shape[dim + 1 :])
    taken = low.b.op("slice", low.names[x], shape=kept, dim=dim, start=index % shape[dim], step=1)
    return low.b.reshape(taken, low.shape(node))


def _cat(low: Lowering, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    if any(low.is_row(part) != low.is_row(node) for part in parts):
        raise moves_rows(node)
    dim, dtype = low.dim(node, dim), low.dtype(node)
    names = [low.b.cast(low.names[part], dtype) for part in parts if part.meta["val"].ndim == node.meta["val"].ndim]
    names = [name for name in names if low.b.shape(name)[dim]] or names[:1]
    return low.b.op("cat", *names, dim=dim, dtype=dtype)


def _reduction(op: str) -> Callable[..., str]:
    def rule(
        low: Lowering, node: fx.Node, x: fx.Node, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> str:
        dims = [dims] if isinstance(dims, int) else dims
        if not dims:
            if low.is_row(x):
                raise along_rows()
            dims = range(x.meta["val"].ndim)
        low.check_kind(op, node)
        name = low.b.cast(low.names[x], low.dtype(node))
        name = low.b.op(op, name, dims=tuple(sorted(low.dim(x, dim) for dim in dims)))
        return low.b.reshape(name, low.shape(node)) if keepdim else name

    return rule


def _full(low: Lowering, node: fx.Node, *size_and_value: Any, **kwargs: Any) -> str:
    # Constants are folded into their readers, so they are rounded to the node's type here.
    value = torch.full((), size_and_value[-1], dtype=node.meta["val"].dtype, device="cpu").item()
    return low.b.full(value, low.shape(node), low.dtype(node))


def _dropout(low: Lowering, node: fx.Node, x: fx.Node, p: float, number: int = 0) -> str:
    # A number tells what several functions of one layer draw alike.
    low.salt = number or low.salt + 1
    drawn = low.b.op("random", shape=low.shape(node), dtype=low.dtype(node), p=p, salt=low.salt)
    splat = low.b.splat(low.names[x])
    return low.b.op("mul", low.names[x] if splat is None else splat, drawn)


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

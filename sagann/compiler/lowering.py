"""Lowering: the ops that a stage has been translated to so far, and the rules that translate each operator.

A rule takes the lowering, the operator's result, which is a fake tensor, and its arguments, and gives the name of the builder's value.
Dimension 0 of every tensor that is no parameter must be the rows. Another layout is a :class:`NotFusedError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.composites import most_entries
from sagann.compiler.operators import DROPOUT, TYPED_LINEAR
from sagann.compiler.trace import ROWS, is_rows
from sagann.kernels.edge.builder import Builder, arithmetic_dtype
from sagann.kernels.edge.function import BINARY, COMPARISONS, KINDS, UNARY, Arg, Shape
from sagann.kernels.naive import HALF

_aten = torch.ops.aten
# Ops that all dialects compute alike on integers; other ops are for floating numbers.
_ON_INTEGERS = COMPARISONS | {"add", "sub", "mul", "neg", "sum", "detach"}
_LOGICAL = frozenset(["and", "or", "not"])


class NotFusedError(Exception):
    """An operator on the edges has no fused form; the message names the operator and the user's line."""


class Lowering:
    """A stage on its way into the ops of a builder: the operator that is being translated, and a name for each tensor so far."""

    def __init__(self) -> None:
        self.b = Builder()
        "The ops so far."
        self.target: Any = None
        "The operator that is being translated."
        self.salt = 0
        "Number of the dropout that was translated last."
        # The tensors are kept, because a new one could get the id of one that was freed.
        self._named: dict[int, tuple[Tensor, str]] = {}

    def set_name(self, tensor: Tensor, name: str) -> None:
        """Name the builder's value that a tensor of the stage is."""
        self._named[id(tensor)] = tensor, name

    def name(self, tensor: Tensor) -> str:
        """Name of the builder's value for a tensor; a tensor that no operator gave is a constant, of one entry."""
        if id(tensor) not in self._named:
            if tensor.numel() != 1:
                raise NotFusedError("a constant tensor of several entries is read on the edges")
            value = self.b.full(tensor.item(), tuple(tensor.shape), arithmetic_dtype(tensor.dtype))
            self.set_name(tensor, value)
        return self._named[id(tensor)][1]

    def is_row(self, value: Any) -> bool:
        """Whether the value has a row per edge. Fails if the rows are another dimension than the first."""
        if not isinstance(value, Tensor):
            return False
        shape = value.shape
        if any(is_rows(size) for size in shape[1:]) or (shape and is_rows(shape[0]) and shape[0] != ROWS):
            raise self.moves_rows()
        return bool(shape) and shape[0] == ROWS

    def shape(self, value: Tensor) -> Shape:
        """The value's feature shape; the whole shape if the value has no rows."""
        return tuple(value.shape[1:] if self.is_row(value) else value.shape)

    def dim(self, value: Tensor, dim: int) -> int:
        """A dimension of a tensor, counted among its feature dimensions."""
        rows = self.is_row(value)
        dim = dim % max(value.ndim, 1)
        if rows and dim == 0:
            raise along_rows()
        return dim - 1 if rows else dim

    def arg(self, value: Any, out: Tensor) -> Arg:
        """An operand of a pointwise operator whose result is ``out``."""
        if not isinstance(value, Tensor):
            if not isinstance(value, (int, float, bool)):
                raise NotFusedError(f"operator {self.target} takes {value!r}")
            return value
        if (splat := self.b.splat(self.name(value))) is not None:
            return splat
        name = self.beside_rows(value, out)
        if self.is_row(value) and out.ndim != value.ndim:
            raise self.moves_rows()
        return name

    def beside_rows(self, value: Tensor, out: Tensor) -> str:
        """A value as an operand of ``out``: a parameter that is broadcast along the rows loses that dimension."""
        name = self.name(value)
        if self.is_row(out) and not self.is_row(value) and len(self.b.shape(name)) == out.ndim:
            return self.b.reshape(name, self.b.shape(name)[1:])
        return name

    def pointwise(self, op: str, out: Tensor, *values: Any) -> str:
        """An op on broadcast operands. Operands that are constants throughout are folded into the op."""
        args = [self.arg(value, out) for value in values]
        dtype, shape = self.dtype(out), self.shape(out)
        if dtype is torch.bool:
            op = {"add": "or", "mul": "and"}.get(op, op)
        self.check_kind(op, out)
        common = dtype
        if op in _LOGICAL:
            args = [arg if isinstance(arg, str) else bool(arg) for arg in args]
        elif op in COMPARISONS:
            common, args = self.compared(values, args)
        last = args[-1]
        if not isinstance(last, str) and not any(isinstance(arg, str) for arg in args):
            args[-1] = self.b.full(last, shape, common)
        if op not in _LOGICAL:
            args = self.alike(args, common)
        return self.b.op("broadcast", self.b.op(op, *args, dtype=dtype), shape=shape)

    def compared(self, values: Sequence[Any], args: list[Arg]) -> tuple[torch.dtype, list[Arg]]:
        """The type in which PyTorch compares the operands, and the operands with numbers rounded to that type."""
        common = torch.result_type(*values)
        if common in HALF:
            read = [each.dtype for each, arg in zip(values, args, strict=True) if isinstance(arg, str)]
            if not {common, torch.bool}.issuperset(read):
                raise NotFusedError(f"operator {self.target} rounds what it compares to {common}")
            args = [
                arg if isinstance(arg, str) else torch.tensor(arg, dtype=common, device="cpu").item()
                for arg in args
            ]
        return arithmetic_dtype(known(common)), args

    def alike(self, args: list[Arg], dtype: torch.dtype) -> list[Arg]:
        """The operands, converted to one type."""
        return [self.b.cast(arg, dtype) if isinstance(arg, str) else arg for arg in args]

    def dtype(self, value: Tensor) -> torch.dtype:
        return arithmetic_dtype(known(value.dtype))

    def check_kind(self, op: str, out: Tensor) -> None:
        if not self.dtype(out).is_floating_point and op not in _ON_INTEGERS:
            raise NotFusedError(f"operator {self.target} on integers has no fused form")

    def moves_rows(self) -> NotFusedError:
        """The error of an operator after which the rows are not dimension 0."""
        return NotFusedError(f"operator {self.target} moves the dimension of the rows")


def along_rows() -> NotFusedError:
    """The error of an operator that mixes rows."""
    return NotFusedError("an operator works along the dimension of the rows")


def known(dtype: torch.dtype) -> torch.dtype:
    """The type, if values on the edges may have it. Narrow integers are refused: their sums wrap around."""
    if dtype not in KINDS:
        raise NotFusedError(f"values of type {dtype} have no fused form; convert them to int64 or a floating type")
    return dtype


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

"""Lowering: the ops that a stage has been translated to so far, and what a rule asks of an operator's result and its operands.

Dimension 0 of every tensor that is no parameter must be the rows. Another layout is a :class:`NotFusedError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.trace import ROWS, is_rows
from sagann.kernels.edge.builder import Builder, arithmetic_dtype
from sagann.kernels.edge.function import COMPARISONS, Arg, Shape
from sagann.kernels.edge.kinds import KINDS
from sagann.kernels.naive import HALF

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

"""Lowering: the ops that a stage has been translated to so far, and what a rule asks of a node and its operands.

Dimension 0 of every tensor that is no parameter must be the rows. Another layout is a :class:`NotFusedError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

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
    """A traced stage on its way into the ops of a builder."""

    def __init__(self) -> None:
        self.b = Builder()
        "The ops so far."
        self.names: dict[fx.Node, str] = {}
        "Name of the builder's value for each node that is translated."
        self.salt = 0
        "Number of the dropout that was translated last."

    def is_row(self, value: Any) -> bool:
        """Whether the value has a row per edge. Fails if the rows are another dimension than the first."""
        if not isinstance(value, fx.Node):
            return False
        shape = value.meta["val"].shape
        if any(is_rows(size) for size in shape[1:]) or (shape and is_rows(shape[0]) and shape[0] != ROWS):
            raise moves_rows(value)
        return bool(shape) and shape[0] == ROWS

    def shape(self, node: fx.Node) -> Shape:
        """The node's feature shape; the whole shape if the node has no rows."""
        shape = node.meta["val"].shape
        return tuple(shape[1:] if self.is_row(node) else shape)

    def dim(self, node: fx.Node, dim: int) -> int:
        """A dimension of the node's tensor, counted among its feature dimensions."""
        ndim, rows = node.meta["val"].ndim, self.is_row(node)
        dim = dim % max(ndim, 1)
        if rows and dim == 0:
            raise along_rows()
        return dim - 1 if rows else dim

    def arg(self, value: Any, node: fx.Node) -> Arg:
        """An operand of a pointwise operator whose result is ``node``."""
        if not isinstance(value, fx.Node):
            if not isinstance(value, (int, float, bool)):
                raise NotFusedError(f"operator {node.target} takes {value!r}")
            return value
        name = self.names[value]
        if (splat := self.b.splat(name)) is not None:
            return splat
        name = self.beside_rows(value, node)
        if self.is_row(value) and node.meta["val"].ndim != value.meta["val"].ndim:
            raise moves_rows(node)
        return name

    def beside_rows(self, value: fx.Node, node: fx.Node) -> str:
        """A value as an operand of ``node``: a parameter that is broadcast along the rows loses that dimension."""
        name = self.names[value]
        if self.is_row(node) and not self.is_row(value) and len(self.b.shape(name)) == node.meta["val"].ndim:
            return self.b.reshape(name, self.b.shape(name)[1:])
        return name

    def pointwise(self, op: str, node: fx.Node, *values: Any) -> str:
        """An op on broadcast operands. Operands that are constants throughout are folded into the op."""
        args = [self.arg(value, node) for value in values]
        dtype, shape = self.dtype(node), self.shape(node)
        if dtype is torch.bool:
            op = {"add": "or", "mul": "and"}.get(op, op)
        self.check_kind(op, node)
        common = dtype
        if op in _LOGICAL:
            args = [arg if isinstance(arg, str) else bool(arg) for arg in args]
        elif op in COMPARISONS:
            common, args = self.compared(node, values, args)
        last = args[-1]
        if not isinstance(last, str) and not any(isinstance(arg, str) for arg in args):
            args[-1] = self.b.full(last, shape, common)
        if op not in _LOGICAL:
            args = self.alike(args, common)
        return self.b.op("broadcast", self.b.op(op, *args, dtype=dtype), shape=shape)

    def compared(self, node: fx.Node, values: Sequence[Any], args: list[Arg]) -> tuple[torch.dtype, list[Arg]]:
        """The type in which PyTorch compares the operands, and the operands with numbers rounded to that type."""
        operands = [each.meta["val"] if isinstance(each, fx.Node) else each for each in values]
        common = torch.result_type(*operands)
        if common in HALF:
            read = [each.dtype for each, arg in zip(operands, args, strict=True) if isinstance(arg, str)]
            if not {common, torch.bool}.issuperset(read):
                raise NotFusedError(f"operator {node.target} rounds what it compares to {common}")
            args = [
                arg if isinstance(arg, str) else torch.tensor(arg, dtype=common, device="cpu").item()
                for arg in args
            ]
        return arithmetic_dtype(known(common)), args

    def alike(self, args: list[Arg], dtype: torch.dtype) -> list[Arg]:
        """The operands, converted to one type."""
        return [self.b.cast(arg, dtype) if isinstance(arg, str) else arg for arg in args]

    def dtype(self, node: fx.Node) -> torch.dtype:
        return arithmetic_dtype(known(node.meta["val"].dtype))

    def check_kind(self, op: str, node: fx.Node) -> None:
        if not self.dtype(node).is_floating_point and op not in _ON_INTEGERS:
            raise NotFusedError(f"operator {node.target} on integers has no fused form")


def moves_rows(node: fx.Node) -> NotFusedError:
    """The error of an operator after which the rows are not dimension 0."""
    return NotFusedError(f"operator {node.target} moves the dimension of the rows")


def along_rows() -> NotFusedError:
    """The error of an operator that mixes rows."""
    return NotFusedError("an operator works along the dimension of the rows")


def known(dtype: torch.dtype) -> torch.dtype:
    """The type, if values on the edges may have it. Narrow integers are refused: their sums wrap around."""
    if dtype not in KINDS:
        raise NotFusedError(f"values of type {dtype} have no fused form; convert them to int64 or a floating type")
    return dtype

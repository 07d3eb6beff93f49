"""Builder of edge functions, op by op. It infers shapes and types, merges equal ops, and leaves out trivial ops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from sagann.kernels.edge.function import (
    COMPARISONS,
    REDUCTIONS,
    Arg,
    EdgeFunction,
    End,
    Input,
    Op,
    Output,
    Shape,
    shape_of,
    verify,
)
from sagann.kernels.naive import HALF

# By op, the second operand that leaves the first one as it is.
_NEUTRAL = {"mul": 1, "div": 1, "add": 0, "sub": 0}


def arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of ``dtype`` are computed. Half precision is storage only."""
    return torch.float32 if dtype in HALF else dtype


class Builder:
    """Collects the inputs and ops of an edge function. Values are known by name."""

    def __init__(self, inputs: Iterable[Input] = (), ops: Iterable[Op] = ()) -> None:
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self._values: dict[str, Input | Op] = {}
        self._same: dict[tuple[object, ...], str] = {}
        self._count = 0
        for given in inputs:
            self.input(given)
        for op in ops:
            self._add(op)

    def input(self, given: Input) -> str:
        """Add an array that the pass reads."""
        assert given.name not in self._values
        self.inputs.append(given)
        self._values[given.name] = given
        return given.name

    def shape(self, value: Arg) -> Shape:
        """The feature shape of a value; () for a constant."""
        return self._values[value].shape if isinstance(value, str) else ()

    def dtype(self, value: Arg) -> torch.dtype:
        """The type in which a value is computed."""
        assert isinstance(value, str)
        return arithmetic_dtype(self._values[value].dtype)

    def op(self, op: str, *args: Arg, shape: Shape = (), dtype: torch.dtype | None = None, **attrs: Any) -> str:
        """Add an op (:class:`Op`), unless an equal op exists, and return the name of its value.

        Only ops that state their shape need ``shape``. The default of ``dtype`` is the promoted type of the arguments.
        """
        shape = shape_of(op, [self.shape(arg) for arg in args], attrs, shape)
        if op in COMPARISONS:
            dtype = torch.bool
        elif dtype is None:
            dtype = self._promoted(args[1:] if op == "where" else args)
        if (trivial := self._trivial(op, args, shape, dtype, attrs)) is not None:
            return trivial
        key = _key(op, args, shape, dtype, attrs)
        if key not in self._same:
            name = self._fresh(op)
            self._add(Op(name=name, op=op, args=args, shape=shape, dtype=dtype, attrs=MappingProxyType(attrs)))
        return self._same[key]

    def full(self, value: float | int | bool, shape: Shape, dtype: torch.dtype) -> str:
        """A constant."""
        return self.op("full", value, shape=shape, dtype=dtype)

    def reshape(self, value: str, shape: Shape) -> str:
        """The same entries in another shape."""
        return self.op("reshape", value, shape=shape)

    def cast(self, value: str, dtype: torch.dtype) -> str:
        """Convert to another type."""
        return self.op("cast", value, dtype=arithmetic_dtype(dtype))

    def sum_to(self, value: str, shape: Shape) -> str:
        """Undo a broadcast: sum the dimensions in which ``value`` is larger than ``shape``."""
        own = self.shape(value)
        padded = (1,) * (len(own) - len(shape)) + shape
        dims = tuple(dim for dim, size in enumerate(padded) if size == 1 and own[dim] != 1)
        return self.reshape(self.op("sum", value, dims=dims) if dims else value, shape)

    def build(self, outputs: Iterable[Output], at: End) -> EdgeFunction:
        """The function that computes ``outputs``, without inputs and ops that no output reads."""
        outputs = tuple(outputs)
        needed = {name for output in outputs for name in output.values}
        ops = []
        for op in reversed(self.ops):
            if op.name in needed:
                ops.append(op)
                needed |= {arg for arg in op.args if isinstance(arg, str)}
        inputs = tuple(given for given in self.inputs if given.name in needed)
        function = EdgeFunction(inputs=inputs, ops=tuple(reversed(ops)), outputs=outputs, at=at)
        verify(function)
        return function

    def _add(self, op: Op) -> None:
        self._same.setdefault(_key(op.op, op.args, op.shape, op.dtype, op.attrs), op.name)
        self.ops.append(op)
        self._values[op.name] = op

    def _fresh(self, op: str) -> str:
        while (name := f"{op}_{self._count}") in self._values:
            self._count += 1
        self._count += 1
        return name

    def _promoted(self, args: tuple[Arg, ...]) -> torch.dtype:
        dtypes = [self.dtype(arg) for arg in args if isinstance(arg, str)]
        dtype = dtypes[0]
        for other in dtypes[1:]:
            dtype = torch.promote_types(dtype, other)
        floating = dtype.is_floating_point or not any(isinstance(arg, float) for arg in args)
        return dtype if floating else torch.get_default_dtype()

    def _trivial(
        self, op: str, args: tuple[Arg, ...], shape: Shape, dtype: torch.dtype, attrs: dict[str, Any]
    ) -> str | None:
        """The existing value that the op would only repeat, if any."""
        first = args[0] if args else None
        if not isinstance(first, str):
            # Only 1 * x and 0 + x repeat their second argument.
            first, args = (args[1], args[::-1]) if op in ("mul", "add") else (None, args)
        if not isinstance(first, str):
            return None
        if op == "reshape":
            return self._reshaped(first, shape)
        same = self.shape(first) == shape and self.dtype(first) == dtype
        if op in REDUCTIONS and attrs["dims"] and all(self.shape(first)[dim] == 1 for dim in attrs["dims"]):
            return self.reshape(first, shape)
        repeats = (
            (op in ("broadcast", "cast", "slice") and same)
            or (op in REDUCTIONS and not attrs["dims"])
            or (op == "permute" and attrs["dims"] == tuple(range(len(shape))))
            or (op == "cat" and len(args) == 1)
            or (op in _NEUTRAL and same and not isinstance(args[1], str) and args[1] == _NEUTRAL[op])
        )
        return first if repeats else None

    def _reshaped(self, value: str, shape: Shape) -> str | None:
        """A reshape of reshapes as one, or as none; None for the reshape of another value."""
        first, earlier = value, self._values[value]
        while isinstance(earlier, Op) and earlier.op == "reshape":
            first = str(earlier.args[0])
            earlier = self._values[first]
        if self.shape(first) == shape:
            return first
        return None if first == value else self.op("reshape", first, shape=shape)

    def splat(self, value: str) -> float | int | bool | None:
        """The constant of a value made by ``full``, or None."""
        op = self._values[value]
        if isinstance(op, Op) and op.op == "full" and not isinstance(op.args[0], str):
            return op.args[0]
        return None

    def size(self, value: str) -> int:
        """Number of entries of a row."""
        return math.prod(self.shape(value))


def _key(
    op: str, args: tuple[Arg, ...], shape: Shape, dtype: torch.dtype, attrs: Mapping[str, Any]
) -> tuple[object, ...]:
    """A key that is equal for equal ops. Constants differ where they are written differently: 1, 1.0, True, 0.0, -0.0."""
    return op, tuple(map(repr, args)), shape, dtype, tuple(sorted(attrs.items()))

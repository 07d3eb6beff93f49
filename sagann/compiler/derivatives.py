"""Derivatives of edge operations: from the gradient of an op's result to those of its arguments.

A rule gets an op and the gradient of its result. It returns one gradient per argument, in the shape of the result or of the
argument (the caller undoes broadcasting), or None if the argument has none. Conventions at kinks are PyTorch's: relu has slope
0 at 0; a tie of maximum or minimum is shared by halves, a tie of amax or amin evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sagann.kernels.edge.builder import Builder
from sagann.kernels.edge.function import Arg, Op

Rule = Callable[[Builder, Op, str], tuple[str | None, ...]]


def _times(factor: Callable[[Builder, Op], Arg]) -> Rule:
    """The rule of a unary op whose derivative is ``factor``."""
    return lambda b, op, grad: (b.op("mul", grad, factor(b, op)),)


def _x(op: Op) -> str:
    return str(op.args[0])


def _relu(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    # Written so that NaN passes, as in PyTorch.
    return (b.op("where", b.op("le", _x(op), 0), b.full(0, b.shape(grad), b.dtype(grad)), grad),)


def _minus_square(b: Builder, value: str) -> str:
    return b.op("sub", 1.0, b.op("mul", value, value))


def _div(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    denominator = op.args[1]
    first = b.op("div", grad, denominator)
    if not isinstance(denominator, str):
        return first, None
    return first, b.op("neg", b.op("mul", first, op.name))


def _mul(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    return b.op("mul", grad, op.args[1]), b.op("mul", grad, op.args[0])


def _pow(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    base, exponent = op.args
    to_base = to_exponent = None
    if isinstance(base, str):
        if isinstance(exponent, str):
            slope = b.op("mul", exponent, b.op("pow", base, b.op("sub", exponent, 1.0)))
            slope = b.op("where", b.op("eq", exponent, 0.0), b.full(0, b.shape(slope), b.dtype(slope)), slope)
            to_base = b.op("mul", grad, slope)
        elif exponent == 0:
            to_base = None
        elif exponent == 2:
            to_base = b.op("mul", grad, b.op("mul", base, 2.0))
        else:
            to_base = b.op("mul", grad, b.op("mul", b.op("pow", base, exponent - 1), float(exponent)))
    if isinstance(exponent, str):
        log = b.op("log", base) if isinstance(base, str) else _log(float(base))
        slope = b.op("mul", op.name, log)
        if isinstance(base, str) or base == 0:
            still = b.op("ge", exponent, 0.0)
            still = b.op("and", b.op("eq", base, 0.0), still) if isinstance(base, str) else still
            slope = b.op("where", still, b.full(0, b.shape(slope), b.dtype(slope)), slope)
        to_exponent = b.op("mul", grad, slope)
    return to_base, to_exponent


def _log(base: float) -> float:
    if base > 0:
        return math.log(base)
    return -math.inf if base == 0 else math.nan


def _extremum_of_two(beats: str, loses: str) -> Rule:
    def rule(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
        first, second = op.args
        if not isinstance(first, str):
            first, second = second, first
        assert isinstance(first, str)
        shape, dtype = b.shape(grad), b.dtype(grad)
        half, zero = b.op("mul", grad, 0.5), b.full(0, shape, dtype)
        tie = b.op("eq", first, second)
        to_first = b.op("where", tie, half, b.op("where", b.op(loses, first, second), zero, grad))
        to_second = b.op("where", tie, half, b.op("where", b.op(beats, first, second), zero, grad))
        pair: tuple[str | None, ...] = (to_first, to_second)
        return pair if isinstance(op.args[0], str) else pair[::-1]

    return rule


def _where(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    zero = b.full(0, b.shape(grad), b.dtype(grad))
    return None, b.op("where", op.args[0], grad, zero), b.op("where", op.args[0], zero, grad)


def _reshape(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    return (b.reshape(grad, b.shape(_x(op))),)


def _permute(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    dims = op.attrs["dims"]
    return (b.op("permute", grad, dims=tuple(dims.index(dim) for dim in range(len(dims)))),)


def _slice(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    dim, start, step = op.attrs["dim"], op.attrs["start"], op.attrs["step"]
    whole, taken = b.shape(_x(op)), op.shape[dim]
    dtype = b.dtype(grad)
    if step > 1:
        # Entries between the taken ones: one more dimension, filled up with zeros.
        widened = (*op.shape[: dim + 1], 1, *op.shape[dim + 1 :])
        gap = b.full(0, (*widened[: dim + 1], step - 1, *widened[dim + 2 :]), dtype)
        grad = b.op("cat", b.reshape(grad, widened), gap, dim=dim + 1, dtype=dtype)
        grad = b.reshape(grad, (*op.shape[:dim], taken * step, *op.shape[dim + 1 :]))
        if start + taken * step > whole[dim]:
            shape = (*op.shape[:dim], whole[dim] - start, *op.shape[dim + 1 :])
            grad = b.op("slice", grad, shape=shape, dim=dim, start=0, step=1)
    parts = []
    if start:
        parts.append(b.full(0, (*whole[:dim], start, *whole[dim + 1 :]), dtype))
    parts.append(grad)
    if rest := whole[dim] - start - b.shape(grad)[dim]:
        parts.append(b.full(0, (*whole[:dim], rest, *whole[dim + 1 :]), dtype))
    return (b.op("cat", *parts, dim=dim, dtype=dtype),)


def _cat(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    dim, start, parts = op.attrs["dim"], 0, []
    for arg in op.args:
        shape = b.shape(arg)
        parts.append(b.op("slice", grad, shape=shape, dim=dim, start=start, step=1))
        start += shape[dim]
    return tuple(parts)


def _kept(b: Builder, value: str, op: Op) -> str:
    """A reduced value with its dimensions back, of size 1."""
    shape = b.shape(_x(op))
    return b.reshape(value, tuple(1 if dim in op.attrs["dims"] else size for dim, size in enumerate(shape)))


def _sum(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    return (b.op("broadcast", _kept(b, grad, op), shape=b.shape(_x(op))),)


def _extremum(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    ties = b.cast(b.op("eq", _x(op), _kept(b, op.name, op)), b.dtype(grad))
    count = b.op("sum", ties, dims=op.attrs["dims"])
    return (b.op("mul", ties, _kept(b, b.op("div", grad, count), op)),)


RULES: dict[str, Rule] = {
    "neg": lambda b, op, grad: (b.op("neg", grad),),
    "abs": _times(lambda b, op: b.op("sign", _x(op))),
    "exp": _times(lambda b, op: op.name),
    "expm1": _times(lambda b, op: b.op("add", op.name, 1.0)),
    "log": lambda b, op, grad: (b.op("div", grad, _x(op)),),
    "log1p": lambda b, op, grad: (b.op("div", grad, b.op("add", _x(op), 1.0)),),
    "sqrt": lambda b, op, grad: (b.op("div", grad, b.op("mul", op.name, 2.0)),),
    "rsqrt": _times(lambda b, op: b.op("mul", b.op("pow", op.name, 3.0), -0.5)),
    "reciprocal": _times(lambda b, op: b.op("neg", b.op("mul", op.name, op.name))),
    "tanh": _times(lambda b, op: _minus_square(b, op.name)),
    "sigmoid": _times(lambda b, op: b.op("mul", op.name, b.op("sub", 1.0, op.name))),
    "relu": _relu,
    "erf": _times(
        lambda b, op: b.op("mul", b.op("exp", b.op("neg", b.op("mul", _x(op), _x(op)))), 2 / math.sqrt(math.pi))
    ),
    "sin": _times(lambda b, op: b.op("cos", _x(op))),
    "cos": _times(lambda b, op: b.op("neg", b.op("sin", _x(op)))),
    "add": lambda b, op, grad: (grad, grad),
    "sub": lambda b, op, grad: (grad, b.op("neg", grad)),
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "maximum": _extremum_of_two("gt", "lt"),
    "minimum": _extremum_of_two("lt", "gt"),
    "where": _where,
    "cast": lambda b, op, grad: (grad,),
    "reshape": _reshape,
    "broadcast": lambda b, op, grad: (grad,),
    "permute": _permute,
    "slice": _slice,
    "cat": _cat,
    "sum": _sum,
    "amax": _extremum,
    "amin": _extremum,
}
"Rules by op. Other ops (comparisons, sign, floor, detach, constants, random values) have no derivative."

"""VJP: the backward of an edge pass, as edge passes that compute intermediate values again.

The gradient of the gathered rows arrives at the destinations. Each accumulator derives the gradient of every edge's message
from it. Reverse-mode differentiation of the forward ops gives the gradient of every array that the pass read. Gradients are
summed over CSR for arrays of sources, over CSC for arrays of destinations, over all edges for parameters; gradients of edge
data stay as they are. There are at most two passes, and nothing is atomic.

Both passes compute every edge's part again, so that no edge tensor is written. The exception is an edge tensor much narrower
than the rows that a pass would read to compute it: attention's gradient of the scores has one number per head, so the pass
over CSR writes it and the pass over CSC sums it.

:attr:`sagann.kernels.edge.reductions.Reduction.reads` names the extra inputs of the passes: rows of destinations, or of edges
if nothing was reduced.

References:
    Ma et al., NGra, 2018, Sec. 3.3. We differ in that the backward is derived from the program, not written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from sagann.kernels.edge.builder import Builder, arithmetic_dtype
from sagann.kernels.edge.function import Arg, EdgeFunction, End, Input, Op, Output, Side, read_names

Rule = Callable[[Builder, Op, str], tuple[str | None, ...]]
"""From an op and the gradient of its result, one gradient per argument, in the shape of the result or of the argument (the caller undoes broadcasting),
or None if the argument has none. Conventions at kinks are PyTorch's: a tie of maximum or minimum is shared by halves, a tie
of amax or amin evenly."""


def _times(factor: Callable[[Builder, Op], Arg]) -> Rule:
    """The rule of a unary op whose derivative is ``factor``."""
    return lambda b, op, grad: (b.op("mul", grad, factor(b, op)),)


def _x(op: Op) -> str:
    return str(op.args[0])


def _div(b: Builder, op: Op, grad: str) -> tuple[str | None, ...]:
    denominator = op.args[1]
    first = b.op("div", grad, denominator)
    if not isinstance(denominator, str):
        return first, None
    return first, b.op("neg", b.op("mul", first, op.name))


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
    "tanh": _times(lambda b, op: b.op("sub", 1.0, b.op("mul", op.name, op.name))),
    "sigmoid": _times(lambda b, op: b.op("mul", op.name, b.op("sub", 1.0, op.name))),
    "erf": _times(
        lambda b, op: b.op("mul", b.op("exp", b.op("neg", b.op("mul", _x(op), _x(op)))), 2 / math.sqrt(math.pi))
    ),
    "sin": _times(lambda b, op: b.op("cos", _x(op))),
    "cos": _times(lambda b, op: b.op("neg", b.op("sin", _x(op)))),
    "add": lambda b, op, grad: (grad, grad),
    "sub": lambda b, op, grad: (grad, b.op("neg", grad)),
    "mul": lambda b, op, grad: (b.op("mul", grad, op.args[1]), b.op("mul", grad, op.args[0])),
    "div": _div,
    "pow": _pow,
    "maximum": _extremum_of_two("gt", "lt"),
    "minimum": _extremum_of_two("lt", "gt"),
    "where": _where,
    "cast": lambda b, op, grad: (grad,),
    "reshape": lambda b, op, grad: (b.reshape(grad, b.shape(_x(op))),),
    "broadcast": lambda b, op, grad: (grad,),
    "permute": _permute,
    "slice": _slice,
    "cat": _cat,
    "sum": lambda b, op, grad: (b.op("broadcast", _kept(b, grad, op), shape=b.shape(_x(op))),),
    "amax": _extremum,
    "amin": _extremum,
}
"Rules by op. Other ops (comparisons, sign, floor, detach, constants, random values) have no derivative."

CACHE_LINE_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardPass:
    """One pass of the backward."""

    function: EdgeFunction
    results: tuple[str, ...]
    "For each output, the forward's input that it is the gradient of, or the name by which the next pass reads it."

    def names(self, *, of_edges: bool) -> list[str]:
        """Names of those results that have a row per edge, or of the other results."""
        outputs = zip(self.results, self.function.outputs, strict=True)
        return [name for name, output in outputs if (output.reduction.rows == "edge") == of_edges]


def backward_passes(
    forward: EdgeFunction, wanted: Iterable[str], *, hands_on: bool = True
) -> tuple[BackwardPass, ...]:
    """Derive the passes that compute the gradients of the forward's inputs named in ``wanted``.

    An input on which the result does not depend (or only through comparisons) is left out. ``hands_on``: whether a pass may leave rows of edges for the next one.
    """
    builder = Builder(forward.inputs, forward.ops)
    gradients = adjoints(builder, forward, _seeds(builder, forward), wanted)
    sides = {given.name: given.side for given in forward.inputs}
    at_dst = {name: value for name, value in gradients.items() if sides[name] == "dst"}
    at_src = {name: value for name, value in gradients.items() if sides[name] == "src"}
    rest = {name: value for name, value in gradients.items() if sides[name] in ("edge", "param")}
    if hands_on and at_src and at_dst and _is_worth_handing_on(builder, at_dst):
        handed = {f"{name}_at_edges": value for name, value in at_dst.items()}
        return (
            _pass(builder, {**at_src, **rest, **handed}, sides | dict.fromkeys(handed, "edge"), "src"),
            _sum_of(builder, handed, at_dst),
        )
    # Where passes go over different chunks, the rows that each of them reads must not depend on what is wanted.
    if at_dst or not at_src or not hands_on:
        at_dst |= rest
    else:
        at_src |= rest
    groups: tuple[tuple[End, dict[str, str]], ...] = (("dst", at_dst), ("src", at_src))
    return tuple(_pass(builder, group, sides, at) for at, group in groups if group)


def _pass(builder: Builder, gradients: Mapping[str, str], sides: Mapping[str, str], at: End) -> BackwardPass:
    """One pass for the gradients of these inputs."""
    reductions = {"edge": "edge", "param": "total"}
    outputs = [
        Output(reduce=reductions.get(sides[name], "sum"), values=(value,)) for name, value in gradients.items()
    ]
    return BackwardPass(function=builder.build(outputs, at), results=tuple(gradients))


def _is_worth_handing_on(builder: Builder, at_dst: Mapping[str, str]) -> bool:
    """Whether writing the edges' parts and reading them to sum moves fewer bytes than computing them again.

    CSR order writes rows of edges at random, so a cache line is read and written for each row.
    """
    rows = [builder.size(value) * builder.dtype(value).itemsize for value in at_dst.values()]
    anew = builder.build([Output(reduce="sum", values=(value,)) for value in at_dst.values()], "dst")
    read = sum(math.prod(given.shape) * given.dtype.itemsize for given in anew.inputs if given.side == "src")
    return sum(2 * max(row, CACHE_LINE_BYTES) + row for row in rows) < read


def _sum_of(builder: Builder, handed: Mapping[str, str], names: Iterable[str]) -> BackwardPass:
    """The pass that sums the rows that an earlier pass wrote for every edge."""
    inputs = [
        Input(name=name, side="edge", shape=builder.shape(value), dtype=builder.dtype(value))
        for name, value in handed.items()
    ]
    outputs = [Output(reduce="sum", values=(name,)) for name in handed]
    return BackwardPass(function=Builder(inputs).build(outputs, "dst"), results=tuple(names))


def message_gradients(forward: EdgeFunction) -> EdgeFunction:
    """The function that gives every edge the gradients of its values, one "edge" output for each value."""
    b = Builder(forward.inputs, forward.ops)
    seeds = _seeds(b, forward)
    values = dict.fromkeys(value for output in forward.outputs for value in output.values)
    return b.build([Output(reduce="edge", values=(seeds[value],)) for value in values], "dst")


def _seeds(b: Builder, forward: EdgeFunction) -> dict[str, str]:
    """The gradients of the edges' values, from the backward's extra inputs."""
    seeds: dict[str, str] = {}
    for output, names in zip(forward.outputs, read_names(forward), strict=True):
        reduction, message = output.reduction, output.values[-1]
        side: Side = "edge" if reduction.rows == "edge" else "dst"
        reads = {}
        for read, name in zip(reduction.reads, names, strict=True):
            shape = b.shape(message if read.of == "value" else output.values[0])
            dtype = torch.int64 if read.is_edge else b.dtype(message)
            reads[read.name] = b.input(Input(name=name, side=side, shape=shape, dtype=dtype))
        for value, grad in reduction.seeds(b, output.values, reads).items():
            seeds[value] = b.op("add", seeds[value], grad) if value in seeds else grad
    return seeds


def adjoints(b: Builder, forward: EdgeFunction, seeds: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """Reverse-mode differentiation: names of the gradients of the ``wanted`` inputs, in their order.

    ``b`` holds the forward's ops; those of the backward are added. ``seeds`` are gradients by value.
    """
    wanted = tuple(wanted)
    active = set(wanted)
    for op in forward.ops:
        if op.op in RULES and any(arg in active for arg in op.args):
            active.add(op.name)
    gradients = {value: grad for value, grad in seeds.items() if value in active}
    for op in reversed(forward.ops):
        if op.name in gradients and op.op in RULES:
            _propagate(b, op, gradients, active)
    return {name: b.cast(gradients[name], b.dtype(name)) for name in wanted if name in gradients}


def _propagate(b: Builder, op: Op, gradients: dict[str, str], active: set[str]) -> None:
    for arg, grad in zip(op.args, RULES[op.op](b, op, gradients[op.name]), strict=True):
        if not isinstance(arg, str) or arg not in active or grad is None or b.dtype(arg) == torch.bool:
            continue
        if not b.dtype(arg).is_floating_point:
            continue
        grad = b.cast(b.sum_to(grad, b.shape(arg)), arithmetic_dtype(b.dtype(arg)))
        gradients[arg] = b.op("add", gradients[arg], grad) if arg in gradients else grad

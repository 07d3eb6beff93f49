"""A fused pass over the edges as one differentiable function: forward a pass, backward at most two.

The backward recomputes; what is kept is the pass's own inputs, and for softmax and extrema what a pass gives
beside the result. Random values come again from the same seed. Gradients of gradients are not offered.

Concat is the one accumulator whose result has a row per edge. The pass writes these rows once, in CSC order, and
they are put between the padding; the backward takes the rows' gradients out again. No other edge tensor exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import EdgeWork
from sagann.compiler.vjp import ARGUMENT, DELTA, GRAD, TOP, Backward
from sagann.graph.topology import Topology
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.first_order import Saved, first_order_only
from sagann.kernels.gather.naive import concat_slots
from sagann.kernels.memory import empty
from sagann.runtime.degrees import divisors
from sagann.runtime.dialects import Dialect, ScattersExtrema, run_pass
from sagann.runtime.random_numbers import drawn_seed

SCATTERED_FROM = 10
"From so many in-edges per destination on, to move an extremum's gradient feature by feature costs less than to read every edge."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """One run of a pass: everything but its arrays."""

    edges: EdgeWork
    function: EdgeFunction
    backward: Backward
    topology: Topology
    dialect: Dialect
    seed: int


def gather_fused(edges: EdgeWork, topology: Topology, arrays: list[Tensor], dialect: Dialect) -> Tensor:
    """Run the fused pass: [num_dst, ...].

    Args:
        edges: with a function.
        topology: the edges.
        arrays: one per input of ``edges.stage``.
        dialect: runs the passes.
    """
    assert edges.function is not None
    assert edges.backward is not None
    seed = drawn_seed() if edges.function.random else 0
    call = _Call(
        edges=edges,
        function=edges.function,
        backward=edges.backward,
        topology=topology,
        dialect=dialect,
        seed=seed,
    )
    accum: Tensor = _FusedGather.apply(call, *arrays)  # type: ignore[no-untyped-call]
    return accum.to(edges.dtype)


class _FusedGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *arrays: Tensor) -> Tensor:
        named = dict(zip(call.edges.stage.inputs, arrays, strict=True))
        read = [given.name for given in call.function.inputs]
        given = {name: named[name].detach() for name in read}
        slots = _slots(call)
        result, *rest = run_pass(call.dialect, call.function, call.topology, given, seed=call.seed)
        if call.edges.accumulator == "mean":
            result /= divisors(call.topology.in_degrees(), result)
        if slots is not None:
            result = _padded(call, slots, result)
        wanted = tuple(name for name, needed in zip(named, ctx.needs_input_grad[1:], strict=True) if needed)
        ctx.call, ctx.wanted, ctx.scatters = call, wanted, _scatters(call)
        steps = () if ctx.scatters else call.backward.passes(wanted)
        # Nothing is kept that the backward does not read: the sum of a source's rows needs none of them.
        read_again = {each.name for step in steps for each in step.function.inputs}
        ctx.kept = [name for name in named if name in read_again]
        ctx.forms = {name: (array.shape, array.dtype) for name, array in named.items()}
        extra = [*rest, result] if call.edges.accumulator == "softmax" else rest
        ctx.save_for_backward(*(named[name] for name in ctx.kept), *(extra if wanted else []))
        return result

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        kept, extra = saved[: len(ctx.kept)], saved[len(ctx.kept) :]
        gradients: dict[str, Tensor] = {}
        if ctx.scatters:
            # The only array that is read; others may be wanted that have no features.
            (name,) = (given.name for given in call.function.inputs)
            assert isinstance(call.dialect, ScattersExtrema)
            gradients[name] = call.dialect.scatter_extremum(call.topology, extra[0], grad)
        else:
            given = dict(zip(ctx.kept, kept, strict=True))
            given |= _incoming(call, grad, extra)
            for step in call.backward.passes(ctx.wanted):
                read = {each.name: given[each.name] for each in step.function.inputs}
                results = run_pass(call.dialect, step.function, call.topology, read, seed=call.seed)
                for name, result in zip(step.results, results, strict=True):
                    (gradients if name in ctx.forms else given)[name] = result
        for name in ctx.wanted:
            if name not in gradients:
                # What no gradient reaches, as through a sign, has one of zeros, as in PyTorch.
                shape, dtype = ctx.forms[name]
                gradients[name] = grad.new_zeros((), dtype=dtype).expand(shape)
        return None, *(
            _in_form(gradients[name], shape, dtype) if name in gradients else None
            for name, (shape, dtype) in ctx.forms.items()
        )


def _in_form(gradient: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    # A topology may count more sources than an array has rows: no edge reads those.
    rows = gradient if gradient.shape == shape else gradient[: shape[0]]
    return rows.to(dtype)


def _scatters(call: _Call) -> bool:
    """Whether the gradient is moved feature by feature instead of edge by edge."""
    many_edges = call.topology.num_edges >= SCATTERED_FROM * call.topology.num_dst
    return call.edges.extremum_of_source and many_edges and isinstance(call.dialect, ScattersExtrema)


def _slots(call: _Call) -> Tensor | None:
    """For concat, where each edge's row goes; refuses a destination with too many."""
    edges = call.edges
    return concat_slots(call.topology, edges.max_degree) if edges.accumulator == "concat" else None


def _padded(call: _Call, slots: Tensor, rows: Tensor) -> Tensor:
    num_dst, max_degree = call.topology.num_dst, call.edges.max_degree
    padded = rows.new_zeros(num_dst * max_degree, *rows.shape[1:])
    return padded.index_copy_(0, slots, rows).reshape(num_dst, max_degree * math.prod(rows.shape[1:]))


def _incoming(call: _Call, grad: Tensor, saved: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The backward's inputs besides the forward's: of destinations, or of edges for concat."""
    if call.edges.accumulator == "mean":
        grad = torch.div(
            grad, divisors(call.topology.in_degrees(), grad), out=empty(grad.shape, grad.dtype, grad.device)
        )
    slots = _slots(call)
    if slots is not None:
        shape = call.function.value(call.function.outputs[0].values[0]).shape
        grad = grad.reshape(len(grad) * call.edges.max_degree, *shape).index_select(0, slots)
    given = {GRAD: grad}
    if call.edges.accumulator in ("max", "min"):
        given[ARGUMENT] = saved[0]
    if call.edges.accumulator == "softmax":
        given = softmax_incoming(grad, *saved)
    return given


def softmax_incoming(grad: Tensor, top: Tensor, denominator: Tensor, result: Tensor) -> dict[str, Tensor]:
    """What the backward of a softmax reads of destinations.

    Args:
        grad: [rows, ...], of what was gathered; in half precision too.
        top: the largest score.
        denominator: of the softmax, relative to the largest score.
        result: what was gathered; in half precision too.
    Returns:
        The gradient over the denominator, the largest score, and the agreement of gradient and result, summed within
        each head, over the denominator.
    """
    num_dims = denominator.ndim
    beside = denominator.reshape(*denominator.shape, *(1,) * (grad.ndim - num_dims))
    # Converted as they are copied: an operator on two types would convert them in memory of its own.
    scaled = empty(grad.shape, top.dtype, grad.device).copy_(grad).div_(beside)
    agreement = empty(grad.shape, top.dtype, grad.device).copy_(result).mul_(scaled)
    delta = agreement.flatten(num_dims).sum(-1) if agreement.ndim > num_dims else agreement
    return {GRAD: scaled, TOP: top, DELTA: delta}

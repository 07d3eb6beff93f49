"""A fused pass over the edges as one differentiable function: forward a pass, backward at most two.

The backward recomputes; what is kept is the pass's own inputs, and for softmax and extrema what a pass gives
beside the result. Random values come again from the same seed. Gradients of gradients are not offered.

Concat is the one accumulator whose result has a row per edge. The pass writes these rows once, in CSC order, and
they are put between the padding; the backward takes the rows' gradients out again. No other edge tensor exists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import EdgeWork
from sagann.compiler.vjp import Backward
from sagann.graph.topology import Topology
from sagann.kernels.accumulators import Counts
from sagann.kernels.dialects import Dialect, run_pass
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.first_order import Saved, first_order_only
from sagann.kernels.naive import concat_slots
from sagann.kernels.seeds import drawn_seed
from sagann.runtime.in_memory.degrees import divisors

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
        state = run_pass(call.dialect, call.function, call.topology, given, seed=call.seed)
        result, kept = call.edges.gathering.finish(state, _counts(call))
        if slots is not None:
            result = _padded(call, slots, result)
        wanted = tuple(name for name, needed in zip(named, ctx.needs_input_grad[1:], strict=True) if needed)
        ctx.call, ctx.wanted, ctx.scatters = call, wanted, _scatters(call)
        steps = () if ctx.scatters else call.backward.passes(wanted)
        # Nothing is kept that the backward does not read: the sum of a source's rows needs none of them.
        read_again = {each.name for step in steps for each in step.function.inputs}
        ctx.kept = [name for name in named if name in read_again]
        ctx.forms = {name: (array.shape, array.dtype) for name, array in named.items()}
        extra = [*kept, result] if call.edges.gathering.reads_result else kept
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
            assert hasattr(call.dialect, "scatter_extremum")
            gradients[name] = call.dialect.scatter_extremum(call.topology, extra[0], grad)
        else:
            given = dict(zip(ctx.kept, kept, strict=True))
            result = extra[-1] if call.edges.gathering.reads_result else grad
            given |= _incoming(call, grad, extra[: len(call.edges.gathering.keeps)], result)
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
    return call.edges.extremum_of_source and many_edges and hasattr(call.dialect, "scatter_extremum")


def _slots(call: _Call) -> Tensor | None:
    """For concat, where each edge's row goes; refuses a destination with too many."""
    edges = call.edges
    is_sized = edges.gathering.is_sized
    return concat_slots(call.topology, edges.gathering.max_degree) if is_sized else None


def _padded(call: _Call, slots: Tensor, rows: Tensor) -> Tensor:
    num_dst, max_degree = call.topology.num_dst, call.edges.gathering.max_degree
    padded = rows.new_zeros(num_dst * max_degree, *rows.shape[1:])
    return padded.index_copy_(0, slots, rows).reshape(num_dst, max_degree * math.prod(rows.shape[1:]))


def _incoming(call: _Call, grad: Tensor, kept: Sequence[Tensor], result: Tensor) -> dict[str, Tensor]:
    """The backward's inputs besides the forward's: of destinations, or of edges for concat."""
    slots = _slots(call)
    if slots is not None:
        shape = call.function.value(call.function.outputs[0].values[0]).shape
        grad = grad.reshape(len(grad) * call.edges.gathering.max_degree, *shape).index_select(0, slots)
    return call.edges.gathering.arrive(call.function, grad, kept, result, _counts(call))


def _counts(call: _Call) -> Counts:
    topology = call.topology

    def counts(like: Tensor) -> Tensor:
        found: Tensor = topology.derived(
            ("divisors", like.dtype, like.ndim), lambda: divisors(topology.in_degrees(), like)
        )
        return found

    return counts

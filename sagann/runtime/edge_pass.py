"""A fused pass over the edges as one differentiable function: forward a pass, backward at most two.

The backward recomputes; what is kept is the pass's own inputs, and for softmax and extrema one more tensor of
destinations. Random values come again from the same seed. Gradients of gradients are not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import EdgeWork
from sagann.compiler.vjp import ARGUMENT, DELTA, GRAD, LSE, Backward
from sagann.graph.topology import Topology
from sagann.kernels.edge.function import EdgeFunction
from sagann.runtime.degrees import divisors
from sagann.runtime.dialects import Dialect, ScattersExtrema, run_pass
from sagann.runtime.first_order import first_order_only


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
    seed = int(torch.randint(2**31, ())) if edges.function.random else 0
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
        result, *rest = run_pass(call.dialect, call.function, call.topology, given, seed=call.seed)
        if call.edges.accumulator == "mean":
            result /= divisors(call.topology, result)
        wanted = tuple(name for name, needed in zip(named, ctx.needs_input_grad[1:], strict=True) if needed)
        ctx.call, ctx.wanted, ctx.scatters = call, wanted, _scatters(call)
        steps = () if ctx.scatters else call.backward.passes(wanted)
        # Nothing is kept that the backward does not read: the sum of a source's rows needs none of them.
        read_again = {each.name for step in steps for each in step.function.inputs}
        ctx.kept = [name for name in named if name in read_again]
        ctx.dtypes = {name: array.dtype for name, array in named.items()}
        extra = [*rest, result] if call.edges.accumulator == "softmax" else rest
        ctx.save_for_backward(*(named[name] for name in ctx.kept), *(extra if wanted else []))
        return result

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        kept, extra = ctx.saved_tensors[: len(ctx.kept)], ctx.saved_tensors[len(ctx.kept) :]
        gradients: dict[str, Tensor] = {}
        if ctx.scatters:
            (name,) = ctx.wanted
            gradients[name] = call.dialect.scatter_extremum(call.topology, extra[0], grad)  # type: ignore[attr-defined]
        else:
            given = dict(zip(ctx.kept, kept, strict=True))
            given |= _incoming(call, grad, extra)
            for step in call.backward.passes(ctx.wanted):
                read = {each.name: given[each.name] for each in step.function.inputs}
                results = run_pass(call.dialect, step.function, call.topology, read, seed=call.seed)
                for name, result in zip(step.results, results, strict=True):
                    (gradients if name in ctx.dtypes else given)[name] = result
        return None, *(
            gradients[name].to(dtype) if name in gradients else None for name, dtype in ctx.dtypes.items()
        )


def _scatters(call: _Call) -> bool:
    """Whether the gradient is moved feature by feature instead of edge by edge."""
    return call.edges.extremum_of_source and isinstance(call.dialect, ScattersExtrema)


def _incoming(call: _Call, grad: Tensor, saved: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The backward's inputs of destinations."""
    if call.edges.accumulator == "mean":
        grad = grad / divisors(call.topology, grad)
    given = {GRAD: grad}
    if call.edges.accumulator in ("max", "min"):
        given[ARGUMENT] = saved[0]
    if call.edges.accumulator == "softmax":
        lse, result = saved
        given[LSE] = lse
        agreement = grad * result
        given[DELTA] = agreement.flatten(lse.ndim).sum(-1) if agreement.ndim > lse.ndim else agreement
    return given

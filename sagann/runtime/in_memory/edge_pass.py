"""A fused pass over the edges, or over rows, as one differentiable function: forward a pass, backward at most two.

The backward recomputes; what is kept is the pass's own inputs, and for softmax and extrema what a pass gives
beside the result. Random values come again from the same seed. Gradients of gradients are not offered.

Concat is the one accumulator whose result has a row per edge. The pass writes these rows once, in CSC order, and
they are put between the padding; the backward takes the rows' gradients out again. No other edge tensor exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import EdgeWork
from sagann.compiler.vjp import Backward
from sagann.graph.topology import Topology
from sagann.graph.widths import id_dtype
from sagann.kernels.accumulators import Counts
from sagann.kernels.dialects import Dialect, run_pass
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.state import GatherState
from sagann.kernels.edge.walk import num_groups
from sagann.kernels.first_order import Saved, first_order_only
from sagann.kernels.naive import concat_slots
from sagann.kernels.seeds import drawn_seed

Forms = Mapping[str, tuple[torch.Size, torch.dtype]]
"Shape and type of arrays, by name."
SCATTERED_FROM = 10
"From so many in-edges per destination on, to move an extremum's gradient feature by feature costs less than to read every edge."
SMALLEST_PASS_BYTES = 1 << 20
"Least bytes of the rows that a pass reads first. PyTorch computes smaller rows, and rows on a device, operator by operator."


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
    """Run the fused pass over one array for each input of ``edges.stage``: [num_dst, ...]."""
    assert edges.function is not None
    assert edges.backward is not None
    call = _Call(
        edges=edges,
        function=edges.function,
        backward=edges.backward,
        topology=topology,
        dialect=dialect,
        seed=drawn_seed() if edges.function.random else 0,
    )
    accum: Tensor = _FusedGather.apply(call, *arrays)  # type: ignore[no-untyped-call]
    return accum.to(edges.dtype)


def compute_rows(work: EdgeWork, arrays: Sequence[Tensor], dialect: Dialect) -> Tensor:
    """Compute a region that :mod:`sagann.compiler.fuse_rows` found, by a pass where the rows are worth one: [rows, ...]."""
    rows = next(array for side, array in zip(work.sides, arrays, strict=True) if side == "dst")
    if rows.device.type != "cpu" or rows.nbytes < SMALLEST_PASS_BYTES:
        (result,) = work.stage.module.forward(*arrays)
        return result
    return gather_fused(work, _own_edges(len(rows)), list(arrays), dialect)


@lru_cache(maxsize=4)
def _own_edges(num_rows: int) -> Topology:
    """A topology with one edge from each vertex to itself."""
    indptr = torch.arange(num_rows + 1, device="cpu")
    return Topology(indptr=indptr, indices=indptr[:-1].to(id_dtype(num_rows)), num_src=num_rows)


class _FusedGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *arrays: Tensor) -> Tensor:
        named = dict(zip(call.edges.stage.inputs, arrays, strict=True))
        read = [given.name for given in call.function.inputs]
        given = {name: named[name].detach() for name in read}
        slots = _slots(call)
        state = _run(call, call.function, given)
        result, kept = call.edges.gathering.finish(state, counts_of(call.topology))
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
        # A model may have written to the edges after its forward has read them.
        call.topology.require_unwritten()
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
                results = _run(call, step.function, read)
                for name, result in zip(step.results, results, strict=True):
                    (gradients if name in ctx.forms else given)[name] = result
        return None, *gradients_in_order(gradients, ctx.wanted, ctx.forms, grad)


def _run(call: _Call, function: EdgeFunction, arrays: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Run a pass of the call; random numbers go by the edges' ids in the graph, also in a worker's part."""
    first, topology = call.topology.first_edge, call.topology
    if not (first and call.function.random):
        return run_pass(call.dialect, function, topology, arrays, seed=call.seed)
    # A pass that does not begin at edge 0 continues from a state.
    state = GatherState(
        function,
        num_rows=num_groups(topology, function.at),
        num_edges=first + topology.num_edges,
        device=topology.device,
    )
    run = partial(run_pass, call.dialect)
    of_edges = iter(state.accumulate(run, topology, arrays, seed=call.seed, edge_offset=first))
    reduced = iter(state.finish())
    return tuple(
        next(of_edges if output.reduction.rows == "edge" else reduced)
        for output in function.outputs
        for _ in output.reduction.state
    )


def gradients_in_order(
    found: Mapping[str, Tensor], wanted: Sequence[str], forms: Forms, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradient of every input, in order; None for those that are not wanted.

    Args:
        found: gradients that the passes of a backward have found, by name.
        wanted: names of the inputs that want a gradient.
        forms: the form of every input.
        grad: any tensor on the device of the gradients.
    """
    gradients: list[Tensor | None] = []
    for name, (shape, dtype) in forms.items():
        if name in found:
            gradients.append(in_form(found[name], shape, dtype))
        else:
            # What no gradient reaches, as through a sign, has one of zeros, as in PyTorch.
            gradients.append(grad.new_zeros((), dtype=dtype).expand(shape) if name in wanted else None)
    return tuple(gradients)


def in_form(gradient: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The gradient of an array in the array's shape and type."""
    # A topology may count more sources than an array has rows: no edge reads those.
    rows = gradient if gradient.shape == shape else gradient[: shape[0]]
    return rows.to(dtype)


def _scatters(call: _Call) -> bool:
    """Whether the gradient is moved feature by feature instead of edge by edge."""
    many_edges = call.topology.num_edges >= SCATTERED_FROM * call.topology.num_dst
    return call.edges.extremum_of_source and many_edges and hasattr(call.dialect, "scatter_extremum")


def _slots(call: _Call) -> Tensor | None:
    """For concat, where each edge's row goes; refuses a destination with too many."""
    gathering = call.edges.gathering
    return concat_slots(call.topology, gathering.max_degree) if gathering.is_sized else None


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
    return call.edges.gathering.arrive(call.function, grad, kept, result, counts_of(call.topology))


def counts_of(topology: Topology) -> Counts:
    """The divisors of a mean over a topology's edges; found once for each form of rows."""
    return lambda like: topology.derived(
        ("divisors", like.dtype, like.ndim), lambda: divisors(topology.in_degrees(), like)
    )


def divisors(in_degrees: Tensor, like: Tensor) -> Tensor:
    """In-degrees, or 1 where there are no in-edges, in the type of ``like`` and for a division of its rows."""
    found = in_degrees.clamp(min=1).to(like.dtype).reshape(-1, *(1,) * (like.ndim - 1))
    if like.is_cuda and not found.is_cuda:
        # A copy from pinned memory lets the host go on while the device computes.
        return found.pin_memory().to(like.device, non_blocking=True)
    return found

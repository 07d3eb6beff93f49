"""A fused gather of a worker's part: inner edges are gathered while the rows for the outer ones travel, then the states are merged.

Inner edges read rows that are at the worker, outer edges read rows of the halo. Forward, the state of the inner edges is computed during
the exchange, and goes on with the outer edges. Backward, the gradients of the halo's rows are computed first, and travel while
all other gradients are computed. The order is the same however long the rows travel, so clocks decide no bit.

Gathers whose results depend on the numbers of edges are left to :mod:`sagann.runtime.in_memory.edge_pass`, after the exchange: of equal
extrema the edge with the lower id wins, and random numbers go by the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import EdgeWork, LayerProgram
from sagann.compiler.vjp import Backward, BackwardPass
from sagann.graph.edges_apart import EdgesApart, RowsUnderWay
from sagann.graph.topology import Topology
from sagann.kernels.dialects import Dialect, run_pass
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.state import GatherState
from sagann.kernels.edge.walk import num_groups
from sagann.kernels.first_order import Saved, first_order_only
from sagann.runtime.in_memory.edge_pass import Forms, counts_of, gradients_in_order, in_form


def can_gather_apart(program: LayerProgram) -> bool:
    """Whether a program's gather can be one over inner and outer edges, and it is worth it.

    The answer follows from the program alone, so it is the same at all workers. A gather that is kept waits for the exchange once.
    """
    edges, typed = program.edges, program.typed
    return (
        edges.function is not None
        and edges.gathering.is_reduced
        and not edges.function.numbers_edges
        and not program.invariant
        and bool(program.source_rows)
        and (typed is None or typed.order == "none")
    )


def gather_apart(
    edges: EdgeWork,
    topology: Topology,
    apart: EdgesApart,
    arrays: list[Tensor],
    dialect: Dialect,
    *,
    keeps: bool,
) -> Tensor:
    """Run the fused pass over one array for each input of ``edges.stage``: [num_dst, ...].

    Args:
        edges: the computation on every edge, which :func:`can_gather_apart` has let pass.
        topology: the worker's part.
        apart: the edges of the part, apart.
        arrays: the inputs; those of sources have the rows of the worker's own vertices.
        dialect: runs the passes.
        keeps: whether rows of constant features that have come are kept for later epochs.
    """
    assert edges.function is not None
    assert edges.backward is not None
    names = edges.stage.inputs
    sources = {name: array for name, side, array in zip(names, edges.sides, arrays, strict=True) if side == "src"}
    call = _Call(
        edges=edges,
        function=edges.function,
        backward=edges.backward,
        topology=topology,
        apart=apart,
        coming=apart.begin(sources, keeps=keeps),
        run=partial(run_pass, dialect),
    )
    accum: Tensor = _GatherApart.apply(call, *arrays)  # type: ignore[no-untyped-call]
    return accum.to(edges.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """One gather: everything but its arrays."""

    edges: EdgeWork
    function: EdgeFunction
    backward: Backward
    topology: Topology
    apart: EdgesApart
    coming: RowsUnderWay
    "The rows of the halo."
    run: Callable[..., tuple[Tensor, ...]]

    def state(self, function: EdgeFunction, part: Topology) -> GatherState:
        """A state of no edges yet, of the rows that a part of the edges has."""
        return GatherState(
            function,
            num_rows=num_groups(part, function.at),
            num_edges=self.topology.num_edges,
            device=self.topology.device,
        )

    def accumulate(
        self, state: GatherState, part: Topology, given: Mapping[str, Tensor], halo: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """Add a part of the edges to a state.

        Args:
            given: arrays of all edges and of own vertices by name; gradients of edges that another pass has found, as the part has them.
            halo: rows of the halo by name, in place of rows of own vertices; none for inner edges.
        Returns:
            The part's results with a row per edge.
        """
        arrays = {}
        for each in state.function.inputs:
            array = halo[each.name] if each.name in halo else given[each.name]
            is_of_all = each.side == "edge" and each.name in self.edges.stage.inputs
            arrays[each.name] = self._of_part(array, part) if is_of_all else array
        return state.accumulate(self.run, part, arrays)

    def _of_part(self, array: Tensor, part: Topology) -> Tensor:
        for name, data in self.topology.edge_data.items():
            if array is data:
                return part.edge_data[name]
        assert part.edge_ids is not None
        return array.index_select(0, part.edge_ids)


class _GatherApart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *arrays: Tensor) -> Tensor:
        named = dict(zip(call.edges.stage.inputs, arrays, strict=True))
        state = call.state(call.function, call.apart.inner)
        call.accumulate(state, call.apart.inner, named, {})
        halo = call.coming.wait()
        call.accumulate(state, call.apart.outer, named, halo)
        gathering = call.edges.gathering
        result, kept = gathering.finish(state.finish(), counts_of(call.topology))
        wanted = tuple(name for name, needed in zip(named, ctx.needs_input_grad[1:], strict=True) if needed)
        # Nothing is kept that the backward does not read: the sum of a source's rows needs none of them.
        read_again = {each.name for step in call.backward.passes(wanted) for each in step.function.inputs}
        ctx.call, ctx.wanted = call, wanted
        ctx.kept = [name for name in named if name in read_again]
        ctx.of_halo = [name for name in halo if name in read_again]
        ctx.forms = {name: (array.shape, array.dtype) for name, array in named.items()}
        extra = [*kept, result] if gathering.reads_result else kept
        saved = [*(named[name] for name in ctx.kept), *(halo[name] for name in ctx.of_halo)]
        ctx.save_for_backward(*saved, *(extra if wanted else []))
        return result

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        # A model may have written to the edges after its forward has read them.
        call.topology.require_unwritten()
        num_kept, num_saved = len(ctx.kept), len(ctx.kept) + len(ctx.of_halo)
        given = dict(zip(ctx.kept, saved[:num_kept], strict=True))
        halo = dict(zip(ctx.of_halo, saved[num_kept:num_saved], strict=True))
        gathering, extra = call.edges.gathering, saved[num_saved:]
        result = extra[-1] if gathering.reads_result else grad
        kept = extra[: len(gathering.keeps)]
        given |= gathering.arrive(call.function, grad, kept, result, counts_of(call.topology))
        gradients = _Gradients(call, ctx.forms)
        # Passes over sources come first, because their results travel. None of them reads a result of a pass over destinations.
        for step in sorted(call.backward.passes(ctx.wanted), key=lambda step: step.function.at == "dst"):
            gradients.add(step, given, halo)
        return None, *gradients_in_order(gradients.complete(), ctx.wanted, ctx.forms, grad)


class _Gradients:
    """Gradients of a gather's inputs, from the passes of its backward."""

    def __init__(self, call: _Call, forms: Forms) -> None:
        self._call, self._forms = call, forms
        self._sides = dict(zip(call.edges.stage.inputs, call.edges.sides, strict=True))
        self._found: dict[str, Tensor] = {}
        self._returns: dict[str, Callable[[Tensor], None]] = {}
        "For each array of sources, what adds the gradients that other workers send back."
        self._handed: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        "Results of outer edges, and of inner ones, that the next pass reads, by name."

    def add(self, step: BackwardPass, given: Mapping[str, Tensor], halo: Mapping[str, Tensor]) -> None:
        """Run a pass. Gradients of the halo's rows are computed first, and begin to travel."""
        call, function = self._call, step.function
        inner, outer = call.apart.inner, call.apart.outer
        state = call.state(function, outer)
        of_outer = call.accumulate(state, outer, {**given, **self._handed[0]}, halo)
        of_halo: dict[str, Tensor] = {}
        if function.at == "src":
            of_halo = dict(zip(step.names(of_edges=False), state.finish(), strict=True))
            for name in [name for name in of_halo if self._sides[name] == "src"]:
                _, dtype = self._forms[name]
                self._returns[name] = call.coming.give_back(of_halo.pop(name).to(dtype))
            # The inner edges have other sources.
            state = call.state(function, inner)
        of_inner = call.accumulate(state, inner, {**given, **self._handed[1]}, {})
        for name, rows in zip(step.names(of_edges=False), state.finish(), strict=True):
            # A pass over sources sums gradients of parameters apart.
            self._found[name] = of_halo[name] + rows if name in of_halo else rows
        for name, *parts in zip(step.names(of_edges=True), of_outer, of_inner, strict=True):
            if name in self._forms:
                self._found[name] = self._in_order(*parts)
            else:
                self._handed[0][name], self._handed[1][name] = parts

    def _in_order(self, of_outer: Tensor, of_inner: Tensor) -> Tensor:
        """Rows of all edges."""
        rows = of_inner.new_empty(self._call.topology.num_edges, *of_inner.shape[1:])
        for part, found in ((self._call.apart.outer, of_outer), (self._call.apart.inner, of_inner)):
            assert part.edge_ids is not None
            rows.index_copy_(0, part.edge_ids.long(), found)
        return rows

    def complete(self) -> dict[str, Tensor]:
        """The gradients, once those of own rows have come from other workers."""
        for name, rows in self._found.items():
            self._found[name] = in_form(rows, *self._forms[name])
        for name, add_to in self._returns.items():
            add_to(self._found[name])
        if self._returns:
            self._call.coming.end()
        return self._found

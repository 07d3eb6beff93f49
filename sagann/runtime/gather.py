"""Gathers: a loop over chunks of edges into a state, which becomes the gathered rows.

:class:`ChunkedGather` is the meaning of a gather: functions of tensors alone. The caller decides which chunks there are, and where rows lie.
Tiles (:mod:`sagann.runtime.in_memory.tiles`) and the steps of a plan (:mod:`sagann.runtime.streaming.executor`) call these functions too.

:func:`gather_fused` is the gather of a layer in memory, as one differentiable function. The whole topology is one chunk. A worker's part may
be two: inner edges are gathered while the rows of the halo travel, which outer edges read. Backward, the outer edges come first, and the
gradients of the halo's rows travel while all others are computed. The order is the same however long rows travel, so clocks decide no bit.

The backward recomputes: random values come again from the same seed. Gradients of gradients are not offered. Concat is the one accumulator
whose result has a row per edge: the pass writes these rows in CSC order, and they are put between the padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sagann.compiler.program import EdgeWork, LayerProgram
from sagann.compiler.vjp import BackwardPass
from sagann.graph.rows import id_dtype
from sagann.graph.topology import Topology, for_training_as_well
from sagann.kernels.accumulators import Counts, Gathering
from sagann.kernels.edge import Dialect
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.pass_edges import Edges, num_groups
from sagann.kernels.edge.state import GatherState
from sagann.kernels.first_order import Saved, first_order_only
from sagann.kernels.naive import concat_slots
from sagann.kernels.seeds import Seed, drawn_seed

if TYPE_CHECKING:
    from sagann.graph.remote import Remote, RowsUnderWay

SCATTERED_FROM = 10
"From so many in-edges per destination on, to move an extremum's gradient feature by feature costs less than to read every edge."
SMALLEST_PASS_BYTES = 1 << 20
"Least bytes of the rows that a pass reads first. PyTorch computes smaller rows, and rows on a device, operator by operator."


# A layer makes these records at every call, and a tuple is made faster than a dataclass.
class ChunkedGather(NamedTuple):
    """The meaning of a gather, and of the passes of its backward."""

    gathering: Gathering
    function: EdgeFunction
    "The pass of the forward."
    dialect: Dialect
    "Runs the passes."
    num_edges: int
    "Number above the ids of the edges of all chunks."
    device: torch.device
    seed: Seed = 0

    def begin(
        self, function: EdgeFunction, num_rows: int, tensors: Mapping[str, Tensor] | None = None
    ) -> GatherState:
        """The state of a pass over no edges yet, or what :meth:`GatherState.tensors` gave earlier."""
        return GatherState(
            function, num_rows=num_rows, num_edges=self.num_edges, device=self.device, tensors=tensors
        )

    def add(
        self, state: GatherState, edges: Edges, arrays: Mapping[str, Tensor], first_edge: int = 0
    ) -> tuple[Tensor, ...]:
        """Add a chunk, whose edges have ids from ``first_edge`` on; returns its results with a row per edge."""
        return state.accumulate(self.dialect.run, edges, arrays, seed=self.seed, edge_offset=first_edge)

    def finish(
        self, state: GatherState, counts: Counts, of_edges: Sequence[Tensor] = ()
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The gathered rows in the type of arithmetic, and the tensors that :meth:`arrive` reads; may overwrite the state."""
        result, kept = self.gathering.finish(of_edges or state.finish(), counts)
        return result, (*kept, result) if self.gathering.reads_result else kept

    def arrive(self, grad: Tensor, saved: Sequence[Tensor], counts: Counts) -> dict[str, Tensor]:
        """From the rows' gradient and what :meth:`finish` has saved, what the passes of the backward read besides the inputs."""
        *kept, result = saved if self.gathering.reads_result else (*saved, grad)
        return self.gathering.arrive(self.function, grad, kept, result, counts)


class _Chunk(NamedTuple):
    edges: Topology
    coming: RowsUnderWay | None = None
    "The rows of the sources, where these belong to other workers."


class _Call(NamedTuple):
    """One gather in memory: everything but its arrays."""

    work: EdgeWork
    gather: ChunkedGather
    topology: Topology
    chunks: tuple[_Chunk, ...]
    first_edge: int
    "Id of the first edge, from which random values follow."

    def read(self, chunk: _Chunk, arrays: dict[str, Tensor], came: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The arrays that a chunk's edges read by name; ``came`` are rows of other workers in place of own rows."""
        if chunk.edges is self.topology:
            return arrays
        read = {**arrays, **({} if chunk.coming is None else came)}
        for name, side in zip(self.work.stage.inputs, self.work.sides, strict=True):
            if side == "edge" and name in arrays:
                read[name] = self._of_chunk(arrays[name], chunk.edges)
        return read

    def _of_chunk(self, array: Tensor, edges: Topology) -> Tensor:
        assert edges.edge_ids is not None
        if array.is_inference() or not any(array is data for data in self.topology.edge_data.values()):
            return array.index_select(0, edges.edge_ids)
        kept = edges.derived("edge data of the part", WeakTensorKeyDictionary)
        version, rows = kept.get(array, (-1, array))
        if version != array._version:
            with for_training_as_well():
                rows = array.detach().index_select(0, edges.edge_ids)
            kept[array] = array._version, rows
        return rows

    def slots(self) -> Tensor | None:
        """For concat, where each edge's row goes; refuses a destination with too many."""
        gathering = self.work.gathering
        return concat_slots(self.topology, gathering.max_degree) if gathering.is_sized else None

    def scatters(self) -> bool:
        """Whether the gradient is moved feature by feature instead of edge by edge."""
        many_edges = self.topology.num_edges >= SCATTERED_FROM * self.topology.num_dst
        return self.work.extremum_of_source and many_edges and hasattr(self.gather.dialect, "scatter_extremum")


def can_gather_apart(program: LayerProgram) -> bool:
    """Whether a program's gather can be one over inner and outer edges, and it is worth it.

    The answer follows from the program alone, so it is the same at all workers. Of equal extrema the edge with the lower id wins, and random
    numbers go by the ids: such gathers wait for the exchange. A gather that is kept waits once.
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


def gather_fused(
    edges: EdgeWork,
    topology: Topology,
    arrays: list[Tensor],
    dialect: Dialect,
    *,
    remote: Remote | None = None,
    keeps: bool = False,
) -> Tensor:
    """Run the fused pass over one array for each input of ``edges.stage``: [num_dst, ...].

    Args:
        remote: other workers, where :func:`can_gather_apart`; arrays of sources then have the rows of the worker's own vertices.
        keeps: whether rows of constant features that have come are kept for later epochs.
    """
    assert edges.function is not None
    is_random = edges.function.random
    # Random numbers go by the edges' ids in the graph, also in a worker's part.
    first_edge = topology.remote.first_edge if is_random and topology.remote is not None else 0
    chunks: tuple[_Chunk, ...] = (_Chunk(topology),)
    if remote is not None:
        inputs = zip(edges.stage.inputs, edges.sides, arrays, strict=True)
        coming = remote.begin({name: array for name, side, array in inputs if side == "src"}, keeps=keeps)
        chunks = _Chunk(remote.inner), _Chunk(remote.outer, coming)
    gather = ChunkedGather(
        gathering=edges.gathering,
        function=edges.function,
        dialect=dialect,
        num_edges=first_edge + topology.num_edges,
        device=topology.device,
        seed=drawn_seed() if is_random else 0,
    )
    call = _Call(work=edges, gather=gather, topology=topology, chunks=chunks, first_edge=first_edge)
    accum: Tensor = _Gathered.apply(call, *arrays)  # type: ignore[no-untyped-call]
    return accum.to(edges.dtype)


def compute_rows(work: EdgeWork, arrays: Sequence[Tensor], dialect: Dialect) -> Tensor:
    """Compute a region that :mod:`sagann.compiler.lower` found, by a pass where the rows are worth one: [rows, ...]."""
    rows = next(array for side, array in zip(work.sides, arrays, strict=True) if side == "dst")
    if rows.device.type != "cpu" or rows.nbytes < SMALLEST_PASS_BYTES:
        (result,) = work.stage.module.forward(*arrays)
        return result
    return gather_fused(work, _own_edges(len(rows)), list(arrays), dialect)


@lru_cache(maxsize=4)
def _own_edges(num_rows: int) -> Topology:
    indptr = torch.arange(num_rows + 1, device="cpu")
    return Topology(indptr=indptr, indices=indptr[:-1].to(id_dtype(num_rows)), num_src=num_rows)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *arrays: Tensor) -> Tensor:
        gather, topology = call.gather, call.topology
        named = dict(zip(call.work.stage.inputs, arrays, strict=True))
        slots = call.slots()
        state = gather.begin(gather.function, topology.num_dst)
        came: Mapping[str, Tensor] = {}
        of_edges: tuple[Tensor, ...] = ()
        for chunk in call.chunks:
            came = came if chunk.coming is None else chunk.coming.wait()
            of_edges = gather.add(state, chunk.edges, call.read(chunk, named, came), call.first_edge)
        result, saved = gather.finish(state, counts_of(topology), of_edges)
        if slots is not None:
            num_dst, max_degree = topology.num_dst, call.work.gathering.max_degree
            padded = result.new_zeros(num_dst * max_degree, *result.shape[1:]).index_copy_(0, slots, result)
            result = padded.reshape(num_dst, max_degree * math.prod(result.shape[1:]))
        wanted = tuple(name for name, needed in zip(named, ctx.needs_input_grad[1:], strict=True) if needed)
        ctx.call, ctx.wanted, ctx.scatters = call, wanted, call.scatters()
        # Passes over sources come first: their results may travel, and none of these passes reads a result of the others.
        passes = () if ctx.scatters else call.work.backward(wanted)
        ctx.steps = sorted(passes, key=lambda step: step.function.at == "dst")
        # Nothing is kept that the backward does not read: the sum of a source's rows needs none of them.
        read_again = {each.name for step in ctx.steps for each in step.function.inputs}
        ctx.kept = [name for name in named if name in read_again]
        ctx.came = [name for name in came if name in read_again]
        ctx.forms = {name: (array.shape, array.dtype) for name, array in named.items()}
        rows = [*(named[name] for name in ctx.kept), *(came[name] for name in ctx.came)]
        ctx.save_for_backward(*rows, *(saved if wanted else ()))
        return result

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        # A model may have written to the edges after its forward has read them.
        call.topology.require_unwritten()
        tensors = iter(saved)
        given = {name: next(tensors) for name in ctx.kept}
        came = {name: next(tensors) for name in ctx.came}
        gradients = _Gradients(call, ctx.forms)
        if ctx.scatters:
            # The only array that is read; others may be wanted that have no features.
            (name,) = (given.name for given in call.gather.function.inputs)
            assert hasattr(call.gather.dialect, "scatter_extremum")
            gradients.found[name] = call.gather.dialect.scatter_extremum(call.topology, next(tensors), grad)
        else:
            slots = call.slots()
            if slots is not None:
                value = call.gather.function.value(call.gather.function.outputs[0].values[0])
                rows = grad.reshape(len(grad) * call.work.gathering.max_degree, *value.shape)
                grad = rows.index_select(0, slots)
            given |= call.gather.arrive(grad, tuple(tensors), counts_of(call.topology))
            # Outer edges come first, because the gradients of their rows travel.
            chunks = [(chunk, call.read(chunk, given, came)) for chunk in reversed(call.chunks)]
            for step in ctx.steps:
                gradients.add(step, chunks)
        return None, *gradients.in_order(ctx.wanted, grad)


class _Gradients:
    """Gradients of a gather's inputs, from the passes of its backward."""

    def __init__(self, call: _Call, forms: Mapping[str, tuple[torch.Size, torch.dtype]]) -> None:
        self._call, self._forms = call, forms
        self._sides = dict(zip(call.work.stage.inputs, call.work.sides, strict=True))
        self.found: dict[str, Tensor] = {}
        self._returns: dict[str, Callable[[Tensor], None]] = {}
        "For arrays of sources, what adds the gradients that other workers send back."

    def add(self, step: BackwardPass, chunks: Sequence[tuple[_Chunk, dict[str, Tensor]]]) -> None:
        """Run a pass over chunks and the arrays that each reads. Arrays get the results that the next pass reads."""
        gather, function = self._call.gather, step.function
        of_edges = []
        # Chunks have the same destinations, but sources of their own.
        for group in [chunks] if function.at == "dst" else [[each] for each in chunks]:
            first, _ = group[0]
            state = gather.begin(function, num_groups(first.edges, function.at))
            for chunk, arrays in group:
                of_edges.append(gather.add(state, chunk.edges, arrays, self._call.first_edge))
            for name, rows in zip(step.names(of_edges=False), state.finish(), strict=True):
                if first.coming is not None and self._sides[name] == "src":
                    _, dtype = self._forms[name]
                    self._returns[name] = first.coming.give_back(rows.to(dtype))
                else:
                    # A pass over sources sums gradients of parameters chunk by chunk.
                    self.found[name] = self.found[name] + rows if name in self.found else rows
        for name, *parts in zip(step.names(of_edges=True), *of_edges, strict=True):
            if name in self._forms and len(parts) > 1:
                rows = self.found[name] = parts[0].new_empty(self._call.topology.num_edges, *parts[0].shape[1:])
            for (chunk, arrays), part in zip(chunks, parts, strict=True):
                if name not in self._forms:
                    arrays[name] = part
                elif len(parts) == 1:
                    self.found[name] = part
                else:
                    assert chunk.edges.edge_ids is not None
                    rows.index_copy_(0, chunk.edges.edge_ids.long(), part)

    def in_order(self, wanted: Sequence[str], grad: Tensor) -> list[Tensor | None]:
        """The gradient of every input, with what other workers send back; None for those that are not wanted."""
        gradients: list[Tensor | None] = []
        for name, (shape, dtype) in self._forms.items():
            if name not in self.found:
                # What no gradient reaches, as through a sign, has one of zeros, as in PyTorch.
                gradients.append(grad.new_zeros((), dtype=dtype).expand(shape) if name in wanted else None)
                continue
            rows = self.found[name]
            # A topology may count more sources than an array has rows: no edge reads those.
            gradient = (rows if rows.shape == shape else rows[: shape[0]]).to(dtype)
            if name in self._returns:
                self._returns[name](gradient)
            gradients.append(gradient)
        for chunk in self._call.chunks:
            if chunk.coming is not None and self._returns:
                chunk.coming.end()
        return gradients


def counts_of(topology: Topology) -> Counts:
    """The divisors of a mean over a topology's edges; found once for each form of rows."""
    return lambda like: topology.derived(
        ("divisors", like.dtype, like.ndim), lambda: divisors(topology.in_degrees(), like)
    )


def divisors(in_degrees: Tensor, like: Tensor) -> Tensor:
    """In-degrees, or 1 where there are no in-edges, in the type of ``like`` and for a division of its rows."""
    # A copy from pinned memory lets the host go on while the device computes.
    here = in_degrees.to(like.device, non_blocking=True)
    return here.clamp(min=1).to(like.dtype).reshape(-1, *(1,) * (like.ndim - 1))

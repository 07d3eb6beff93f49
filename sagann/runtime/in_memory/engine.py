"""The compiled engine: layers run as the programs that the compiler makes of them.

A program is made at a layer's first call and for every new form of its input, and kept as long as the layer lives.
A layer that cannot be compiled runs as it is written; :meth:`CompiledEngine.why_not` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from sagann.compiler import CallForm, CompilerOptions, LayerProgram, TraceError, compile_layer
from sagann.compiler.trace import tensors_of
from sagann.graph.topology import Topology
from sagann.kernels.edge import Dialect, check_dialect, dialect_for
from sagann.kernels.feature_rows import FeatureRows
from sagann.kernels.naive import scatter_dst, scatter_src
from sagann.runtime.allocator import give_back_freed_memory
from sagann.runtime.gather import can_gather_apart, compute_rows, gather_fused
from sagann.runtime.in_memory.configuration import Key, configuration
from sagann.runtime.in_memory.invariants import Invariants, versions_of
from sagann.runtime.in_memory.tiles import TILE_EDGES, gather_tiled
from sagann.runtime.in_memory.typed_maps import edges_of_pairs, moved_bytes, rows_of_vertices
from sagann.saga.batch_norms import naming_few_rows
from sagann.saga.edge import named
from sagann.saga.engine import EdgeData, Engine, NaiveEngine, VertexRows
from sagann.saga.shared_lock import MODELS
from sagann.saga.side_effects import has_hooks

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer

R = TypeVar("R", Tensor, Tensor | FeatureRows)
Given = Tensor | Mapping[str, Tensor]
"Rows as a layer is called with them: of one kind, or by name."
MOST_PROGRAMS = 16
"Programs kept per layer; the oldest goes first."


class CompiledEngine(Engine):
    """Compiles layers and runs their programs.

    Args:
        dialect: kernels of the edges: "auto" (the fastest for the device), or a dialect's name.
        options: what the compiler may do.
        lean: take as little memory as there is to take, at some cost in speed: nothing is kept that could be computed
            again, and freed memory goes back to the system.
        tile_edges: edges at a time, where they cannot be fused.

    Raises:
        InputError: there is no such dialect.
    """

    def __init__(
        self,
        *,
        dialect: str = "auto",
        options: CompilerOptions | None = None,
        lean: bool = False,
        tile_edges: int = TILE_EDGES,
    ) -> None:
        check_dialect(dialect)
        self.dialect = dialect
        self.tile_edges = tile_edges
        self.lean = lean
        self.invariants = Invariants(is_on=not lean)
        self.options = options or CompilerOptions()
        self._naive = NaiveEngine()
        self._programs: WeakKeyDictionary[SagaLayer, dict[Key, LayerProgram | str]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[object, ...]:
        """A pickle has the options, and nothing that was compiled or kept."""
        given = {"dialect": self.dialect, "options": self.options, "lean": self.lean, "tile_edges": self.tile_edges}
        return partial(CompiledEngine, **given), ()  # type: ignore[arg-type]

    def run(self, layer: SagaLayer, topology: Topology, x: VertexRows, data: EdgeData) -> Tensor:
        """Run a layer on checked input."""
        if self.lean and topology.device.type == "cpu":
            give_back_freed_memory()
        # Work on sources is avoided where they are many more than the destinations.
        many_sources = topology.num_given > 2 * topology.num_dst
        program, tensors = self._compiled(layer, x, data, many_sources)
        if isinstance(program, str):
            if torch.compiler.is_compiling():
                return self._naive.run(layer, topology, _dense(x), data)
            # It reads the layer's parameters itself.
            with MODELS.reading(), naming_few_rows(type(layer).__name__):
                return self._naive.run(layer, topology, _dense(x), data)
        if _has_feature_rows(x) and not program.maps_features:
            return self.run(layer, topology, _dense(x), data)
        program = self._ordered(program, topology, x, data)
        return self._run(layer, program, tensors, topology, x, data)

    def maps_features(self, layer: SagaLayer, x: FeatureRows, data: EdgeData) -> bool:
        """Whether the layer reads such features by linear maps alone, so that they stay sparse."""
        program, _ = self._compiled(layer, named(x), data)
        return not isinstance(program, str) and program.maps_features

    def program(self, layer: SagaLayer, x: Given, data: Given | None = None) -> LayerProgram | None:
        """The program that input like this runs, or None where the layer runs as it is written."""
        program, _ = self._compiled(layer, named(x), named(data))
        return None if isinstance(program, str) else program

    def why_not(self, layer: SagaLayer, x: Given, data: Given | None = None) -> str:
        """Why input like this runs the layer as it is written; empty where it is compiled."""
        program, _ = self._compiled(layer, named(x), named(data))
        return program if isinstance(program, str) else ""

    def programs_of(self, layer: SagaLayer) -> list[LayerProgram | str]:
        """The programs that ``layer`` has run as so far, or why it ran as it is written."""
        return list(self._programs.get(layer, {}).values())

    def _compiled(
        self, layer: SagaLayer, x: VertexRows, data: EdgeData, many_sources: bool = False
    ) -> tuple[LayerProgram | str, dict[str, Tensor]]:
        """The layer's program, or why it has none, and its parameters and buffers."""
        # A trace puts other tensors in the parameters' place for a while.
        with MODELS.reading():
            tensors = tensors_of(layer)
            return self._found(layer, tensors, x, data, many_sources), tensors

    def _found(
        self, layer: SagaLayer, tensors: dict[str, Tensor], x: VertexRows, data: EdgeData, many_sources: bool
    ) -> LayerProgram | str:
        if torch.compiler.is_compiling():
            return "torch.compile sees the layer as it is written"
        device = next(iter(x.values())).device
        if torch.is_autocast_enabled(device.type):
            return "autocast decides the types of its operators"
        if torch._C._are_functorch_transforms_active():
            return "torch.func transforms what its operators do"
        if any(map(is_lazy, tensors.values())):
            return "some of its parameters get their shapes when it first runs"
        programs = self._programs.setdefault(layer, {})
        is_constant = all(map(self.invariants.is_constant, x.values()))
        constant = is_constant and not any(each.requires_grad for each in data.values())
        is_sparse = any(isinstance(rows, FeatureRows) and rows.is_sparse for rows in x.values())
        hooked = tuple(name for name, module in layer.named_modules() if has_hooks([module]))
        key: Key = (configuration(layer, tensors), hooked, device, constant, is_sparse, many_sources)
        key += tuple((name, rows.dtype, rows.shape[1:]) for given in (x, data) for name, rows in given.items())
        program = programs.get(key)
        if program is not None:
            return program
        with MODELS.changing():
            # Another thread may have compiled it meanwhile.
            if key not in programs:
                if len(programs) == MOST_PROGRAMS:
                    del programs[next(iter(programs))]
                vertices = {name: rows.form if isinstance(rows, FeatureRows) else rows for name, rows in x.items()}
                form = CallForm(
                    vertices=vertices,
                    edges=data,
                    options=self.options,
                    is_constant=constant,
                    is_sparse=is_sparse,
                    many_sources=many_sources,
                )
                programs[key] = self._compile(layer, form)
            return programs[key]

    def _compile(self, layer: SagaLayer, form: CallForm) -> LayerProgram | str:
        layer.check_functions(form.vertices, form.edges, again=True)
        if not all(rows.is_floating_point() for rows in form.vertices.values()):
            return "vertex features are not of a floating type"
        try:
            return compile_layer(layer, form)
        except TraceError as error:
            return str(error)

    def _ordered(self, program: LayerProgram, topology: Topology, x: VertexRows, data: EdgeData) -> LayerProgram:
        """The program, or the same with its maps by edge type last where that moves fewer bytes in this topology."""
        last = program.maps_last
        if last is None or _has_feature_rows(x) or topology.remote is not None:
            # Workers exchange the rows that the program reads, so all of them must take the same order.
            return program
        assert last.typed is not None
        types = data[next(each.key for each in last.inputs if each.name == last.typed.types)]
        kept = last.invariant and versions_of(x, data) is not None
        cheaper = moved_bytes(last, topology, types, kept=kept) < moved_bytes(program, topology, types)
        return last if cheaper else program

    def _run(
        self,
        layer: SagaLayer,
        program: LayerProgram,
        tensors: dict[str, Tensor],
        topology: Topology,
        x: VertexRows,
        data: EdgeData,
    ) -> Tensor:
        values: dict[str, Any] = {name: tensors[parameter] for name, parameter in program.parameters}
        for given in program.inputs:
            if given.end == "edge":
                values[given.name] = data[given.key]
            else:
                rows = x[given.key]
                values[given.name] = rows if given.end == "src" else _first(rows, topology)
        dialect = self._dialect(topology)
        run_rows = partial(compute_rows, dialect=dialect)
        values |= program.param.run(values, run_rows)
        values |= program.src.run(values, run_rows)
        for name, source in program.shared:
            values[name] = _first(values[source], topology)
        values |= program.dst.run(values, run_rows)
        if program.invariant:
            owner = self.invariants.owner(layer, program)
            accum = self.invariants.get(owner, topology, x, data, lambda: self._gather(program, topology, values))
        else:
            accum = self._gather(program, topology, values)
        values[program.accum] = accum
        values |= rows_of_vertices(program, topology, values, dialect)
        # What only the edges read makes room for the vertices' rows.
        values = {name: values[name] for name in program.vertex.inputs}
        (out,) = program.vertex.run(values, run_rows).values()
        # What is kept, for other epochs or for the backward, must not be changed by an in-place operation on what the layer
        # returns.
        is_kept = program.invariant or (program.edges.gathering.reads_result and out.requires_grad)
        shares_memory = out.untyped_storage().data_ptr() == accum.untyped_storage().data_ptr()
        return out.clone() if is_kept and shares_memory else out

    def _gather(self, program: LayerProgram, topology: Topology, values: dict[str, Tensor]) -> Tensor:
        edges, dialect = program.edges, self._dialect(topology)
        # A gather that is kept reads its rows once.
        keeps = not self.lean and not program.invariant
        remote = topology.remote
        if remote is not None and not can_gather_apart(program):
            read = {name: values[name] for name in program.source_rows}
            values, remote = {**values, **remote.complete(read, keeps=keeps)}, None
        topology, values = edges_of_pairs(program, topology, values, dialect)
        arrays = [values[name] for name in edges.stage.inputs]
        if edges.function is not None:
            return gather_fused(edges, topology, arrays, dialect, remote=remote, keeps=keeps)
        if self.options.fuse and edges.gathering.is_reduced:
            return gather_tiled(edges, topology, arrays, tile_edges=self.tile_edges)
        # Every edge's row is in memory, and autograd goes through it.
        for number, side in enumerate(edges.sides):
            if side in ("src", "dst"):
                scatter = scatter_src if side == "src" else scatter_dst
                arrays[number] = scatter(topology, arrays[number])
        return edges.gathering.gather(topology, edges.stage.module.forward(*arrays))

    def _dialect(self, topology: Topology) -> Dialect:
        return dialect_for(topology.device.type, self.dialect)


def _first(rows: R, topology: Topology) -> R:
    """The destinations' rows: they are the first of the sources."""
    return rows if topology.num_dst == topology.num_given else rows[: topology.num_dst]


def _has_feature_rows(x: VertexRows) -> bool:
    return any(isinstance(rows, FeatureRows) for rows in x.values())


def _dense(x: VertexRows) -> Mapping[str, Tensor]:
    return {name: rows.dense() if isinstance(rows, FeatureRows) else rows for name, rows in x.items()}

"""Layers whose functions come from a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from sagann.compiler import LayerProgram
from sagann.compiler.nodes import classify, place_of
from sagann.compiler.operators import GATHER
from sagann.compiler.trace import trace_layer
from sagann.graph import Topology
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import Edge, Engine, NaiveEngine, SagaLayer, using_engine
from tests.graphs import rows, skewed
from tests.tolerances import assert_close, largest


class Layer(SagaLayer):
    """A layer made of two functions and a few parameters: ``w`` [4, 4], ``v`` [4], ``a`` (), ``b`` [1]."""

    edge_data = "weight"

    def __init__(
        self,
        edge: Callable[..., Any] | None = None,
        vertex: Callable[..., Any] | None = None,
        accumulator: str = "sum",
        max_degree: int | None = None,
    ) -> None:
        super().__init__()
        self.edge_function, self.vertex_function = edge, vertex
        self.accumulator, self.max_degree = accumulator, max_degree
        generator = torch.Generator().manual_seed(3)
        self.w = nn.Parameter(torch.randn(4, 4, generator=generator))
        self.wide = nn.Parameter(torch.randn(6, 8, generator=generator))
        self.v = nn.Parameter(torch.randn(4, generator=generator))
        self.a = nn.Parameter(torch.randn((), generator=generator))
        self.b = nn.Parameter(torch.randn(1, generator=generator))

    def apply_edge(self, edge: Edge) -> Any:
        return self.edge_function(self, edge) if self.edge_function else edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.vertex_function(self, vertex, accum) if self.vertex_function else accum


def results(
    engine: Engine, layer: SagaLayer, topology: Topology, x: Tensor, upstream: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """The layer's output, all gradients by name (features and edge data as well), and the upstream gradient."""
    leaves = {"x": x.detach().clone().requires_grad_(), **dict(layer.named_parameters())}
    data = {}
    for name, given in topology.edge_data.items():
        floating = given.is_floating_point()
        # A copy: the topology may be one that other tests read as well.
        data[name] = given.to(x.dtype, copy=True).requires_grad_() if floating else given
        if floating:
            leaves[name] = data[name]
    with using_engine(engine):
        out = layer(topology.with_edge_data(**data), leaves["x"])
    if upstream is None:
        upstream = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    if not out.requires_grad:
        return out, {}, upstream
    gradients = torch.autograd.grad(out, list(leaves.values()), upstream, materialize_grads=True)
    return out, dict(zip(leaves, gradients, strict=True)), upstream


def assert_compiles_right(
    layer: SagaLayer, topology: Topology, x: Tensor, *, engine: CompiledEngine | None = None
) -> CompiledEngine:
    """The compiled layer gives what the naive engine gives: values and all gradients."""
    engine = engine or CompiledEngine()
    expected, other, upstream = results(NaiveEngine(), layer, topology, x)
    actual, mine, _ = results(engine, layer, topology, x, upstream)
    # Terms of about 1 may cancel.
    assert_close(actual, expected, scale=max(largest(expected), 1e-3))
    scale = largest(*other.values(), expected)
    assert mine.keys() == other.keys()
    for name, gradient in mine.items():
        assert_close(gradient, other[name], scale=scale)
    return engine


def compiled_right(
    layer: SagaLayer, topology: Topology | None = None, x: Tensor | None = None, **options: Any
) -> Any:
    """The program of a layer, by an engine with ``options``, which gives what the naive engine gives.

    Where neither is given: drawn rows of a skewed topology.
    """
    topology = skewed() if topology is None else topology
    x = rows(topology) if x is None else x
    return program_of(
        layer, topology, x, assert_compiles_right(layer, topology, x, engine=CompiledEngine(**options))
    )


class Ordered(CompiledEngine):
    """Runs maps by edge type before the gather ("first"), after it where that is possible ("last"), or as it does itself ("cheaper")."""

    def __init__(self, order: str, **options: Any) -> None:
        super().__init__(**options)
        self.order = order

    def _ordered(self, program: LayerProgram, *arguments: Any) -> LayerProgram:
        if self.order == "cheaper":
            return super()._ordered(program, *arguments)
        return program.maps_last or program if self.order == "last" else program


def program_of(layer: SagaLayer, topology: Topology, x: Tensor, engine: CompiledEngine) -> Any:
    data = None if layer.edge_data is None else topology.edge_data[layer.edge_data]
    data = data.to(x.dtype) if data is not None and data.is_floating_point() else data
    program = engine.program(layer, x.detach().clone().requires_grad_(), data)
    assert program is not None, engine.why_not(layer, x.detach().clone().requires_grad_(), data)
    return program


def traced(layer: SagaLayer, dim: int = 4) -> fx.GraphModule:
    """The layer's graph for float32 rows of ``dim`` features and numbers as edge data."""
    data = torch.rand(5) if layer.edge_data else None
    module = trace_layer(layer, torch.randn(9, dim), data)
    classify(module)
    return module


def targets(module: fx.GraphModule, place: str) -> list[str]:
    nodes = [node for node in module.graph.nodes if node.op == "call_function" and node.meta["place"] == place]
    return [node.target._schema.name.partition("::")[2] for node in nodes]


def verify(module: fx.GraphModule) -> None:
    """Assert the invariants that passes on a layer's graph rely on, and leave true.

    One gather stands between the edges and the vertices. Nodes have a value, their trace and their place; no edge reads what was gathered.
    """
    module.graph.lint()
    assert [node.target for node in module.graph.nodes].count(GATHER) == 1
    for node in module.graph.nodes:
        name, meta = node.name, node.meta
        assert meta.keys() >= {"place", "phase", "line", "parameter"}, name
        assert node.op != "placeholder" or (meta["parameter"] is None) == ("input" in meta), name
        assert node.op in ("get_attr", "output") or meta.get("val") is not None, name
        assert meta["place"] == place_of(node), name
        # A map that commuted to the sources stands before the gather, and its weight was computed after it.
        is_early = meta["phase"] == "edge" and meta["place"] not in ("param", "src")
        assert not is_early or all(read.meta["phase"] != "vertex" for read in node.all_input_nodes), name

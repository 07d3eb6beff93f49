"""Layers with several tensors of vertex rows, several edge data and several messages give what plain PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sagann
from sagann.errors import InputError, LayerError
from sagann.graph import Topology
from sagann.graph.feature_store import declare_constant
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import Edge, Engine, NaiveEngine, SagaLayer, using_engine
from tests.compiler.layers import Ordered
from tests.graphs import odd_topologies, random_topology
from tests.tolerances import assert_close, largest

Rows = Mapping[str, Tensor]


class Points(SagaLayer):
    """Three messages of features and positions, weighted, and not fused where ``tiled``."""

    accumulator = {"total": "sum", "spread": ("max", "std"), "near": "softmax"}
    edge_data = ("weight", "type")

    def __init__(self, *, tiled: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.tiled = tiled
        self.scale = nn.Parameter(torch.rand(3, generator=generator))
        self.linear, self.out = nn.Linear(4, 5), nn.Linear(4 + 2 * 5 + 3 + 3, 6)
        with torch.no_grad():
            for parameter in (*self.linear.parameters(), *self.out.parameters()):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def apply_edge(self, edge: Edge) -> dict[str, Any]:
        step = edge.src["pos"] - edge.dst["pos"]
        step = step.cumsum(-1) if self.tiled else step
        scale = self.scale[2] + edge.data["type"][:, None] * self.scale[0]
        return {
            "total": edge.src["x"] * edge.data["weight"][:, None] * scale,
            "spread": torch.tanh(self.linear(edge.src["x"]) + edge.dst["x"][:, :1]),
            "near": (-(step * step).sum(-1), step * self.scale[1]),
        }

    def apply_vertex(self, vertex: Rows, accum: Rows) -> Tensor:
        return self.out(torch.cat([accum["total"], accum["spread"], accum["near"], vertex["pos"]], -1))


def by_hand(layer: Points, topology: Topology, rows: Rows) -> Tensor:
    data, results = topology.edge_data, []
    for at in range(topology.num_dst):
        edges = slice(int(topology.indptr[at]), int(topology.indptr[at + 1]))
        sources = topology.indices[edges].long()
        x, pos = rows["x"][sources], rows["pos"][sources]
        if not len(sources):
            results.append(torch.cat([rows["x"].new_zeros(17), rows["pos"][at]]))
            continue
        step = pos - rows["pos"][at]
        step = step.cumsum(-1) if layer.tiled else step
        scale = layer.scale[2] + data["type"][edges, None] * layer.scale[0]
        message = torch.tanh(layer.linear(x) + rows["x"][at, :1])
        variance = message.var(0, correction=0)
        deviation = variance.clamp(min=1e-5).sqrt().masked_fill(variance <= 1e-5, 0)
        near = torch.softmax(-(step * step).sum(-1), 0) @ (step * layer.scale[1])
        total = (x * data["weight"][edges, None] * scale).sum(0)
        results.append(torch.cat([total, message.amax(0), deviation, near, rows["pos"][at]]))
    return layer.out(torch.stack(results)) + 0 * sum(rows[name].sum() for name in rows)


def rows_of(num_vertices: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(num_vertices)
    widths = {"x": 4, "pos": 3}
    return {
        name: torch.randn(num_vertices, width, dtype=torch.float64, generator=generator)
        for name, width in widths.items()
    }


def outcome(run: Callable[[Rows], Tensor], layer: nn.Module, rows: Rows, *others: Tensor) -> list[Tensor]:
    leaves = {name: each.clone().requires_grad_() for name, each in rows.items()}
    result = run(leaves)
    upstream = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
    wanted = [*leaves.values(), *layer.parameters(), *others]
    gradients = torch.autograd.grad(result, wanted, upstream, materialize_grads=True)
    return [result.detach(), *gradients]


def assert_alike(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert_close(actual[0], expected[0])
    scale = largest(*expected)
    for mine, other in zip(actual[1:], expected[1:], strict=True):
        assert_close(mine, other, scale=scale)


def through(engine: Engine, layer: SagaLayer, topology: Topology) -> Callable[[Rows], Tensor]:
    def run(rows: Rows) -> Tensor:
        with using_engine(engine):
            return layer(topology, rows)

    return run


@pytest.mark.parametrize("name", odd_topologies())
@pytest.mark.parametrize("tiled", [False, True])
def test_every_engine_gives_what_the_formula_gives(name, tiled):
    topology, layer = odd_topologies(types=3)[name], Points(tiled=tiled).double()
    weight = topology.edge_data["weight"].double().requires_grad_()
    topology = topology.with_edge_data(weight=weight)
    rows = rows_of(topology.num_src)
    expected = outcome(lambda given: by_hand(layer, topology, given), layer, rows, weight)
    for engine in (NaiveEngine(), CompiledEngine(tile_edges=7), CompiledEngine(dialect="naive", tile_edges=7)):
        assert_alike(outcome(through(engine, layer, topology), layer, rows, weight), expected)
    (program,) = engine.programs_of(layer)
    assert (program.edges.function is None) == tiled


class Relations(SagaLayer):
    """A map by type, weighted: edge data besides the types."""

    edge_data = ("weight", "type")

    def __init__(self, accumulator: str) -> None:
        super().__init__()
        self.accumulator = accumulator
        self.weight = nn.Parameter(torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(3)))

    def apply_edge(self, edge: Edge) -> Tensor:
        return sagann.typed_linear(edge.src, edge.data["type"], self.weight) * edge.data["weight"][:, None]


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("accumulator", ["sum", "mean"])
def test_maps_by_type_read_other_edge_data_in_its_order(order, accumulator):
    layer, topology = Relations(accumulator).double(), random_topology(53, 401, types=3)
    topology = topology.with_edge_data(weight=topology.edge_data["weight"].double())
    rows = {"": rows_of(53)["x"]}
    engine = Ordered(order)

    def run(chosen: Engine) -> list[Tensor]:
        return outcome(lambda given: through(chosen, layer, topology)(given[""]), layer, rows)

    assert_alike(run(engine), run(NaiveEngine()))
    (program,) = engine.programs_of(layer)
    assert [program.typed.order, program.maps_last.typed.order] == ["first", "last"]


class Plain(SagaLayer):
    """Averages a product of both ends' rows."""

    accumulator = {"product": "sum", "count": "sum"}

    def apply_edge(self, edge: Edge) -> dict[str, Tensor]:
        return {"product": edge.src["a"] * edge.dst["b"], "count": torch.ones_like(edge.src["a"][:, 0])}

    def apply_vertex(self, vertex: Rows, accum: Rows) -> Tensor:
        return accum["product"] / accum["count"].clamp(min=1)[:, None]


def test_constant_rows_are_gathered_once():
    topology, layer, engine = random_topology(30, 200), Plain(), CompiledEngine()
    a, b = (declare_constant(torch.randn(30, 4)) for _ in range(2))
    run = through(engine, layer, topology)
    first = run({"a": a, "b": b})
    assert engine.invariants.held_bytes == 30 * 5 * 4
    assert torch.equal(run({"a": a, "b": b}), first)
    # Other rows under the same names are other rows.
    assert_close(run({"a": b, "b": b}), through(NaiveEngine(), layer, topology)({"a": b, "b": b}))
    with torch.no_grad():
        b.mul_(2)
    assert_close(run({"a": a, "b": b}), 2 * first)


def test_messages_of_several_types_run_as_written():
    class Mixed(Plain):
        def apply_edge(self, edge: Edge) -> dict[str, Tensor]:
            return {"product": edge.src["a"].double(), "count": torch.ones_like(edge.src["a"][:, 0])}

    topology, layer, engine = random_topology(30, 200), Mixed(), CompiledEngine()
    rows = {"a": torch.randn(30, 4)}
    assert torch.equal(through(engine, layer, topology)(rows), through(NaiveEngine(), layer, topology)(rows))
    assert "several types" in engine.why_not(layer, rows)


def test_a_message_that_is_missing_is_named():
    class Forgets(Plain):
        def apply_edge(self, edge: Edge) -> dict[str, Tensor]:
            return {"product": edge.src["a"]}

    with pytest.raises(
        LayerError, match=r"a message for each accumulator.*'product', expected.*'product', 'count'"
    ):
        Forgets()(random_topology(9, 20), {"a": torch.randn(9, 4)})


def test_rows_that_are_missing_are_named():
    with pytest.raises(LayerError, match=r"edge.dst\['b'\]; there are 'a'"):
        Plain()(random_topology(9, 20), {"a": torch.randn(9, 4)})


def test_rows_need_names_and_must_fit():
    with pytest.raises(InputError, match="vertex rows need names: 'a b'"):
        Plain()(random_topology(9, 20), {"a b": torch.randn(9, 4)})
    with pytest.raises(InputError, match=r"do not fit the topology: .*\[8, 4\].*rows 'b'"):
        Plain()(random_topology(9, 20), {"a": torch.randn(9, 4), "b": torch.randn(8, 4)})


@pytest.mark.parametrize(
    ("accumulator", "said"),
    [
        ({}, "need names"),
        ({1: "sum"}, "need names"),
        ({"a": "sum", "b": "median"}, "unknown accumulator: 'median'"),
        ({"a": "sum", "b": "concat"}, "cannot be combined: concat among 2 messages"),
    ],
)
def test_accumulators_of_messages_are_checked(accumulator, said):
    layer = Plain()
    layer.accumulator, layer.max_degree = accumulator, 3
    with pytest.raises(LayerError, match=said):
        layer(random_topology(9, 20), {"a": torch.randn(9, 4), "b": torch.randn(9, 4)})

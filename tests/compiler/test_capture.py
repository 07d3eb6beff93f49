"""Capturing models: what falls into stages and gathers, and what is refused, by operator and line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.compiler import CompilerOptions
from sagann.compiler.capture import capture
from sagann.compiler.model_program import ModelProgram
from sagann.errors import LayerError
from sagann.graph import Topology
from sagann.nn import GIN, SAGE, build_model
from sagann.nn.zoo import ModelConfig
from sagann.saga import Edge, SagaLayer
from tests.graphs import labelled_graph, random_topology


class Model(nn.Module):
    """Two layers, and a function of a test that says how they are used."""

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.plain = SAGE(4, 6), SAGE(6, 3), SagaLayer()
        self.table = nn.Embedding(30, 6)
        self.norm, self.batch_norm = nn.LayerNorm(6), nn.BatchNorm1d(6)
        self.function = forward

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.function(self, hops, x)


def captured(
    model: nn.Module | Callable[..., Any], x: Tensor | None = None, options: CompilerOptions | None = None
) -> ModelProgram:
    """The program of a model, or of :class:`Model` with a function, on two hops of 30 vertices."""
    model = model if isinstance(model, nn.Module) else Model(model)
    return capture(model, [random_topology(30, 90)] * 2, torch.randn(30, 4) if x is None else x, options=options)


def plain(m: Any, hops: Any, x: Tensor) -> Tensor:
    return m.second(hops[1], torch.relu(m.norm(m.first(hops[0], x))))


def test_the_narrower_side_of_a_map_is_what_is_gathered() -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gcn", hidden=5), graph)
    prepared = model.prepare(graph)
    assert prepared.features is not None
    program = capture(model, prepared.hops(model.num_hops), prepared.features)
    widths = [program.forms[gather.result].shape for gather in program.gathers]
    assert widths == [(5,), (3,)]


def test_what_a_later_stage_alone_reads_is_computed_there_where_fewer_bytes_are_carried() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.wide, self.narrow = SAGE(4, 4), nn.Linear(4, 12), nn.Linear(4, 1)

        def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
            h = torch.relu(x)
            gathered, gates = self.layer(hops[0], h), self.wide(h)
            return gathered * gates[:, :4] + gates[:, 4:8] * gates[:, 8:] + self.narrow(x)

    program = captured(Gated())
    first, last = program.stages
    # Three parts of the wide map are made of h, which the edges read; a row of x is wider than what the narrow map makes of it.
    assert sorted(program.forms[name].shape for name in first.outputs) == [(1,), (4,)]
    assert {name for name in last.inputs if name in program.forms} == {*first.outputs, program.gathers[0].result}


def test_a_layer_used_twice_and_layers_of_layers() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = GIN(4, 4)

        def forward(self, topology: Topology, x: Tensor) -> Tensor:
            return torch.tanh(self.layer(topology, x))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
            once = self.inner(hops[0], x)
            return torch.cat([self.inner(hops[0], once), once], -1)

    program = captured(Outer())
    assert len(program.gathers) == 2
    names = [name for _, name in program.parameters]
    assert "inner.layer.eps" in names
    assert program.forms[program.output].shape == (8,)


FOREIGN = random_topology(30, 90)
MIXED = "a model that is streamed, or divided among workers, must treat vertices independently between its layers: "
UNSEEN = "the model cannot be captured: "
NO_HOP = UNSEEN + (
    "a layer gets a topology that is none of the hops, or features that are not a row per vertex: vertex features do not fit the topology: "
)
EDGES = UNSEEN + "it reads 'weight', edge data of a hop, which only its layers may"
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a mean over vertices": (lambda m, h, x: m.first(h[0], x - x.mean(0)), MIXED + "operator mean mixes"),
    "sorted vertices": (lambda m, h, x: m.first(h[0], x.flip(0)), MIXED + "operator flip mixes"),
    "batch norm as a function": (lambda m, h, x: F.batch_norm(m.first(h[0], x), None, None, training=True), MIXED + "operator native_batch_norm mixes"),
    "a number": (lambda m, h, x: m.first(h[0], x).sum(), MIXED + "operator sum mixes"),
    "two results": (lambda m, h, x: (m.first(h[0], x), x), UNSEEN + "it returns several values"),
    "a constant": (lambda m, h, x: 2.0, UNSEEN + "what it returns is a constant"),
    "a parameter": (lambda m, h, x: m.norm.weight * 2, "the model must return one tensor with a row per vertex: [6] of torch.float32, which depends on no vertex"),
    "a branch on values": (lambda m, h, x: m.first(h[0], x if x.sum() > 0 else -x), UNSEEN + "it cannot be traced: DataDependentOutputException"),
    "a foreign topology": (lambda m, h, x: m.first(FOREIGN, x), NO_HOP + "torch.strided [N, 4], expected a tensor [30, F], dense or torch.sparse_csr"),
    "some of the vertices": (lambda m, h, x: m.first(h[0], x[:5]), NO_HOP + "torch.strided [5, 4], expected a tensor [N, F], dense or torch.sparse_csr"),
    "a foreign topology for a table": (lambda m, h, x: m.second(FOREIGN, m.table.weight) + x[:, :3], UNSEEN + "the layer SAGE is called with a topology that is none of the hops"),
    "a foreign layer": (lambda m, h, x: SAGE(4, 2)(h[0], x), UNSEEN + "the layer SAGE is no module of the model"),
    "the edges themselves": (lambda m, h, x: m.first(h[0], x) * h[0].num_edges, UNSEEN + "it reads 'indices' of a hop"),
    "a function of edge data": (lambda m, h, x: m.first(h[0], x) * torch.mean(h[0].edge_data["weight"]), EDGES),
    "a part of edge data": (lambda m, h, x: m.first(h[0], x) * h[0].edge_data["weight"][0], EDGES),
    "arithmetic on edge data": (lambda m, h, x: m.first(h[0], x) if h[0].edge_data["weight"] * 2 is None else x, EDGES),
    "state": (lambda m, h, x: setattr(m, "last", x) or m.first(h[0], x), UNSEEN + "it sets the attribute 'last'"),
    "a fixed number of vertices": (lambda m, h, x: m.first(h[0], x) + torch.ones(30, 6), UNSEEN + "it cannot be traced: RuntimeError: Attempting to broadcast a dimension of length 30"),
}  # fmt: skip


@pytest.mark.parametrize("optimised", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_streamed_is_named(name: str, optimised: bool) -> None:
    forward, said = REFUSED[name]
    options = dict.fromkeys(("hoist", "split_concat", "commute", "invariant", "fuse"), optimised)
    with pytest.raises(LayerError) as caught:
        captured(forward, options=CompilerOptions(**options))
    # Not in the whole message: the line that it names has this text in it.
    assert caught.value.message.startswith(said)


def test_numbers_of_rows_are_not_said_in_figures() -> None:
    with pytest.raises(LayerError, match=r"'\[120\]' is invalid for input of size 4 \* N; N is the number of rows"):
        captured(lambda m, h, x: m.first(h[0], x.view(120)))


def test_what_is_wrong_with_a_layer_is_said_as_where_it_runs_in_memory() -> None:
    class Mixing(SagaLayer):
        def apply_edge(self, edge: Edge) -> Tensor:
            return edge.src - edge.src.mean(0)

    model = Model(lambda m, h, x: m.mixing(h[0], x))
    model.mixing = Mixing()
    said = []
    for run in (lambda x: model([random_topology(30, 90)], x), lambda x: captured(model, x)):
        with pytest.raises(LayerError) as caught:
            run(torch.randn(30, 4))
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert said[0].startswith("Mixing.apply_edge must treat rows independently: operator mean mixes them")


def test_the_line_of_a_mixing_operator_is_the_users() -> None:
    with pytest.raises(LayerError, match=r"test_capture\.py:\d+.*roll"):
        captured(lambda m, h, x: m.second(h[1], m.first(h[0], x).roll(1, 0)))


def test_modules_with_two_names_are_left_as_they_were() -> None:
    layer = SAGE(4, 4)
    layer.again = layer.own
    model = Model(lambda m, h, x: m.other(h[0], m.one(h[0], x).relu()))
    model.one = model.other = layer
    model.outside = layer.own
    assert len(captured(model).gathers) == 2
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    assert type(layer.own.weight) is nn.Parameter


def test_a_model_may_ask_how_many_destinations_there_are() -> None:
    program = captured(lambda m, h, x: m.first(h[0], x) + x[: h[0].num_dst].sum(-1, keepdim=True))
    assert program.forms[program.output].shape == (6,)


def test_a_model_may_ask_whether_there_is_edge_data() -> None:
    def weighted(m: Any, h: Any, x: Tensor) -> Tensor:
        known = h[0].edge_data
        result: Tensor = m.first(h[0], x)
        weight = known.get("weight")
        is_there = weight is not None and isinstance(weight, Tensor) and torch.is_tensor(weight)
        return result[:, :2] if is_there and "type" not in known else result

    program = captured(weighted)
    assert program.forms[program.output].shape == (2,)


def test_a_layer_that_cannot_be_copied_is_named() -> None:
    class Bare(SagaLayer):
        def __deepcopy__(self, memo: object) -> Bare:
            raise RuntimeError

    with pytest.raises(LayerError, match=r"must be copyable: RuntimeError \(in Bare\)"):
        captured(Bare())


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "roll": lambda z: z.roll(1, 0),
    "flip": lambda z: z.flip(0),
    "sort": lambda z: z.sort(0).values,
}


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_are_mixed_are_found_in_what_two_inputs_differ_in(name: str) -> None:
    with pytest.raises(LayerError, match=f"operator {name} mixes them"):
        captured(lambda m, h, x: MIXING[name](x - m.plain(h[0], x)))


class Embedded(nn.Module):
    """A layer over rows of a table, by ids that stand in the features."""

    def __init__(self, scale: int) -> None:
        super().__init__()
        self.table, self.layer, self.scale = nn.Embedding(3, 4), SAGE(4, 2), scale

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.layer(hops[0], self.table(self.scale * x[:, 0].long()))


def test_rows_of_a_table_are_looked_up() -> None:
    program = captured(Embedded(1), torch.ones(30, 1))
    assert program.forms[program.output].shape == (2,)


def test_ids_that_few_rows_can_be_are_refused_by_name() -> None:
    with pytest.raises(LayerError, match=r"on made-up ones: IndexError: .* \(in Embedded.forward\). Clamp"):
        captured(Embedded(100), torch.zeros(30, 1))


PICKED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "as they are": lambda m, x: x.index_select(1, m.order)[:, :4],
    "what is made of them": lambda m, x: x.index_select(1, 3 - m.order)[:, :4],
    "divisors": lambda m, x: x + x.long() // (1 + m.order[:4]),
}


@pytest.mark.parametrize("name", PICKED)
def test_integers_of_the_models_own_are_not_made_up(name: str) -> None:
    model = Model(lambda m, h, x: m.first(h[0], PICKED[name](m, x)))
    model.register_buffer("order", torch.arange(40) % 4)
    program = captured(model)
    assert program.forms[program.output].shape == (6,)


def test_rows_that_are_mixed_are_found_beside_ids() -> None:
    with pytest.raises(LayerError, match="roll"):
        captured(lambda m, h, x: m.first(h[0], x.long().to(x.dtype).roll(1, 0)))

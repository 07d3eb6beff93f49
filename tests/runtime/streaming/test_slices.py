"""Gathers in slices of features: the bits of whole rows, only where the trace shows that lanes are apart, and fewer bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sagann.compiler.slices import widest_rows
from sagann.graph import Topology
from sagann.nn import GNN, build_model
from sagann.nn.zoo import ModelConfig
from sagann.plan import equal_vertices
from sagann.plan.epoch import Planned
from sagann.plan.gradients import Gradients, undivided_of
from sagann.plan.intervals import PartIntervals
from sagann.plan.spec import verify
from sagann.plan.steps import UNLIMITED, Step
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.streaming.stream import foretell
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, SagaLayer
from tests.graphs import labelled_graph, random_topology
from tests.runtime.streams import assert_all_close, assert_runs_right, dense, partial_loss, tight, zoo_model

WIDTH = 7


class Layer(SagaLayer):
    """A layer whose edges are a function of a test."""

    def __init__(
        self,
        of_edge: Callable[[Layer, Edge], Tensor],
        accumulator: str = "sum",
        in_dim: int = WIDTH,
        out_dim: int = WIDTH,
    ) -> None:
        super().__init__()
        self.accumulator = accumulator
        self.of_edge = of_edge
        self.of_src, self.of_dst = nn.Linear(in_dim, out_dim), nn.Linear(in_dim, out_dim)
        self.shift = nn.Parameter(torch.randn(out_dim))
        self.narrow = nn.Linear(in_dim, 1)

    def apply_edge(self, edge: Edge) -> Tensor:
        return self.of_edge(self, edge)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.tanh(accum.flatten(1)) if accum.dim() > 2 else torch.tanh(accum)


def gated(layer: Layer, edge: Edge) -> Tensor:
    return torch.sigmoid(layer.of_dst(edge.dst) + layer.of_src(edge.src)) * edge.src


def in_heads(layer: Layer, edge: Edge) -> Tensor:
    src, dst = layer.of_src(edge.src), layer.of_dst(edge.dst)
    return torch.relu(dst.view(-1, 2, 3) - src.view(-1, 2, 3)) * src.view(-1, 2, 3)


def products(layer: Layer, edge: Edge) -> Tensor:
    return layer.of_src(edge.src) * edge.dst


class Several(nn.Module):
    """Layers whose rows are read by a later one, by other layers that are not cut, and by the result."""

    num_hops = 3

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Layer(gated), Layer(products, "mean")
        self.three = Layer(
            lambda layer, edge: torch.sigmoid((edge.src * edge.dst).sum(-1, keepdim=True)) * edge.src
        )
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        one = self.norm(self.one(hops[0], x))
        two = self.two(hops[1], torch.nn.functional.dropout(one, 0.0))
        return torch.cat([self.three(hops[2], two) * one, two, self.two(hops[0], x)], 1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gates": lambda: GNN([Layer(gated), Layer(gated), Layer(products, "mean")]),
    "heads": lambda: GNN([Layer(in_heads, out_dim=6), Layer(in_heads, in_dim=6, out_dim=6)]),
    "several": Several,
}


def of_model(name: str) -> tuple[nn.Module, list[Topology], Tensor]:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    x = torch.randn(53, WIDTH, dtype=torch.float64, requires_grad=True)
    return model, [random_topology(53, 900)] * model.num_hops, x


def cut_into(planned: Planned) -> int:
    return sum("_slice_" in gather.result for gather in planned.program.gathers)


def numbers(streamed: StreamedModel, x: Tensor) -> list[Tensor]:
    loss = streamed.loss(x, partial_loss)
    leaves = [x, *streamed.model.parameters()]
    return [loss.detach(), *torch.autograd.grad(loss, leaves, materialize_grads=True)]


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("lanes", [1, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_slices_have_the_numbers_of_a_dense_run(name: str, lanes: int, on_disk: bool, tmp_path: Path) -> None:
    model, hops, x = of_model(name)
    bounds = equal_vertices(53, 4)
    options = {"bounds": bounds, "is_square": False, "spill": tmp_path if on_disk else None}
    expected, upstream = dense(model, hops, x)
    streamed = tight(model, hops, x, slice_lanes=lanes, **options)
    whole = tight(model, hops, x, **options)
    for folded in (False, True):
        planned = streamed.plan(x, folded=folded)
        verify(planned.plan)
        assert planned.schedule.part.slice_lanes == lanes
        assert cut_into(planned) > cut_into(whole.plan(x, folded=folded)) == 0
        assert any(isinstance(each, Step) and each.kind == "assemble" for each in planned.plan.operations)
    assert_runs_right(streamed, x, expected, upstream)
    assert_all_close(numbers(streamed, x), numbers(whole, x))


def bare(layer: Layer, edge: Edge) -> Tensor:
    return torch.sigmoid(edge.src + edge.dst) * edge.src


@pytest.mark.parametrize("on_disk", [False, True])
def test_sums_of_slices_have_the_bits_of_whole_rows(on_disk: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    # Without linear maps, whose bits depend on where their operands lie.
    model = GNN([Layer(bare), Layer(bare, "mean"), Layer(bare)])
    hops, x = [random_topology(53, 900)] * 3, torch.randn(53, WIDTH)
    program = captured(model, hops, x, x_is_constant=False)
    part = PartIntervals.of_graph(equal_vertices(53, 4))
    part = replace(part, undivided=undivided_of(program, Gradients(program)))
    found = []
    for lanes in (0, 3):
        streamed = StreamedModel(
            model,
            hops,
            part.bounds,
            budget_bytes=1 << 20,
            part=replace(part, slice_lanes=lanes),
            spill=tmp_path if on_disk else None,
        )
        with torch.no_grad():
            planned = streamed.plan(x)
            assert planned.schedule.part.undivided
            assert planned.schedule.part.slice_lanes == lanes
            assert (cut_into(planned) > 0) == (lanes > 0)
            found.append(streamed(x).clone())
        streamed.close()
    assert torch.equal(*found)


def test_rows_are_dropped_as_in_memory() -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gated-gcn", hidden=9, layers=3, dropout=0.5), graph)
    hops, x = list(graph.hops(3)), graph.features
    streamed = tight(model, hops, x, bounds=(0, 20, 53), is_square=False, slice_lanes=4)
    assert cut_into(streamed.plan(x)) > 3
    torch.manual_seed(3)
    found = streamed(x)
    torch.manual_seed(3)
    assert torch.allclose(found, model(hops, x), atol=1e-5)


def of_parameter(layer: Layer, edge: Edge) -> Tensor:
    return torch.relu(torch.tanh(edge.src + edge.dst) + layer.shift)


def of_edge_data(layer: Layer, edge: Edge) -> Tensor:
    return edge.src * edge.data


def scored(layer: Layer, edge: Edge) -> Tensor:
    return torch.sigmoid((edge.src * edge.dst).sum(-1, keepdim=True)) * edge.src


def scaled_by_row(layer: Layer, edge: Edge) -> Tensor:
    return torch.sigmoid(layer.narrow(edge.src) + layer.narrow(edge.dst)) * edge.src


def shifted(layer: Layer, edge: Edge) -> Tensor:
    gate = torch.sigmoid(edge.src + edge.dst)
    return gate * torch.cat([gate[:, 1:], gate[:, :1]], 1)


def mapped(layer: Layer, edge: Edge) -> Tensor:
    return layer.of_src(torch.relu(edge.src + edge.dst))


def dropped(layer: Layer, edge: Edge) -> Tensor:
    return torch.nn.functional.dropout(edge.src * edge.dst, 0.5, layer.training)


def turned(layer: Layer, edge: Edge) -> Tensor:
    gate = torch.sigmoid(edge.src + edge.dst)
    return gate.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6) * gate


@pytest.mark.parametrize(
    ("of_edge", "width", "is_cut"),
    [
        (gated, WIDTH, True),
        (products, WIDTH, True),
        (in_heads, 6, True),
        (of_parameter, WIDTH, False),
        (of_edge_data, WIDTH, False),
        (scored, WIDTH, False),
        (scaled_by_row, WIDTH, False),
        (shifted, WIDTH, False),
        (mapped, WIDTH, False),
        (dropped, WIDTH, False),
        (turned, 6, False),
    ],
)
def test_rows_are_cut_only_where_lanes_are_apart(
    of_edge: Callable[[Layer, Edge], Tensor], width: int, is_cut: bool
) -> None:
    layer = Layer(of_edge, in_dim=width, out_dim=width)
    topology = random_topology(31, 200)
    if of_edge is of_edge_data:
        layer.edge_data = "rows"
        topology = topology.with_edge_data(rows=torch.rand(topology.num_edges, width))
    x = torch.randn(31, width)
    program = captured(GNN([layer]), [topology], x, x_is_constant=False)
    found = widest_rows(program, Gradients(program, wanted_x=True).recomputing().passes)
    assert found == (width if is_cut else 0)


def test_a_gather_that_is_not_cut_runs_beside_one_that_is() -> None:
    model, hops, x = of_model("several")
    streamed = tight(model, hops, x, bounds=(0, 20, 53), is_square=False, slice_lanes=3)
    program = streamed.plan(x).program
    assert {"_slice_" in gather.result for gather in program.gathers} == {True, False}


def test_attention_is_streamed_whole_beside_slices() -> None:
    model, hops, x = zoo_model("gat")
    x.requires_grad_()
    expected, upstream = dense(model, hops, x)
    bounds = equal_vertices(len(x), 3)
    streamed = StreamedModel(model, hops, bounds, budget_bytes=UNLIMITED)
    streamed._part = replace(streamed._part, slice_lanes=4)
    assert_runs_right(streamed, x, expected, upstream)


def test_a_budget_that_whole_rows_do_not_fit_leads_to_slices() -> None:
    graph = replace(labelled_graph(20_000, 200_000), features=torch.zeros(20_000, 1024))
    model = build_model(ModelConfig(model="gated-gcn", hidden=16, layers=2, dropout=0.0), graph)
    budget_bytes = foretell(model, graph, budget_bytes=UNLIMITED).plan.peak_bytes // 8
    sliced, square = (
        foretell(model, graph, budget_bytes=budget_bytes, select=select, on_disk=True)
        for select in ("auto", "always")
    )
    assert sliced.schedule.part.slice_lanes > 0 == square.schedule.part.slice_lanes
    assert verify(sliced.plan)["device0"] <= budget_bytes
    assert 2 * sliced.plan.loaded_bytes < square.plan.loaded_bytes

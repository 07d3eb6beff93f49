"""The work of steps, against what can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sagann.graph import Graph
from sagann.nn import GNN, build_model
from sagann.nn.zoo import ModelConfig
from sagann.plan import equal_vertices
from sagann.plan.epoch import Planned
from sagann.plan.steps import Step, StepKind
from sagann.plan.work import Work
from sagann.runtime.forecasting.rehearsal import work_of
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, SagaLayer
from tests.graphs import labelled_graph
from tests.plan.machines import ROUND

N, E, HIDDEN = 120, 700, 16


def works(name: str, num_intervals: int) -> tuple[Graph, list[tuple[Step, Work]]]:
    graph = labelled_graph(N, E)
    model = build_model(ModelConfig(model=name, hidden=HIDDEN, heads=2, dropout=0.0), graph)
    return works_of(model, model.prepare(graph), num_intervals)


def works_of(model: nn.Module, graph: Graph, num_intervals: int) -> tuple[Graph, list[tuple[Step, Work]]]:
    bounds = equal_vertices(N, num_intervals)
    streamed = StreamedModel(model, list(graph.hops(model.num_hops)), bounds)
    assert graph.features is not None
    program, schedule, plan = streamed.plan(graph.features, folded=True)
    work = work_of(Planned(program, schedule, plan), graph.features)
    steps = [each for each in plan.operations if isinstance(each, Step) and each.kind != "return"]
    return graph, [(step, work.of(step)) for step in steps]


def total(found: list[tuple[Step, Work]], *kinds: StepKind) -> Work:
    return sum((work for step, work in found if step.kind in kinds), Work())


@pytest.mark.parametrize("num_intervals", [1, 3])
def test_products_and_rows_of_a_gcn(num_intervals: int) -> None:
    graph, found = works("gcn", num_intervals)
    classes, features = graph.num_classes, graph.num_features
    # The first layer's rows are gathered once; its map, and the second one's, which goes before its gather.
    assert total(found, "transform").flops == 2 * N * HIDDEN * (features + classes)
    # Both weights' gradients, and that of what the second map reads.
    assert total(found, "transform_grad").flops == 2 * N * HIDDEN * (features + 2 * classes)
    # With self-loops; rows of a float32 for every class.
    edges = graph.num_edges
    assert total(found, "gather").gather_bytes == edges * classes * 4
    assert total(found, "gather_grad").gather_bytes == edges * classes * 4
    assert total(found, "gather").exponentials == 0


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_maps_of_sparse_features_read_a_row_of_the_weight_for_each_nonzero() -> None:
    graph = labelled_graph(N, E)
    assert graph.features is not None
    sparse = graph.features.clone()
    sparse[:, 3:] = 0
    graph = replace(graph, features=sparse.to_sparse_csr())
    model = build_model(ModelConfig(model="gcn", hidden=HIDDEN, dropout=0.5), graph)
    graph, found = works_of(model, model.prepare(graph), 2)
    nonzeros, classes = 3 * N, graph.num_classes
    # The first map reads features. Its weight's gradient reads as many rows; features have none.
    assert total(found, "transform").gather_bytes == pytest.approx(nonzeros * HIDDEN * 4)
    assert total(found, "transform_grad").gather_bytes == pytest.approx(nonzeros * HIDDEN * 4)
    assert total(found, "transform").flops == 2 * N * HIDDEN * classes
    assert total(found, "transform").gathered_from_bytes == graph.num_features * HIDDEN * 4


def test_maps_on_edges_cost_products() -> None:
    class EdgeNetwork(SagaLayer):
        def __init__(self, in_dim: int) -> None:
            super().__init__()
            self.linear = nn.Linear(in_dim, HIDDEN)

        def apply_edge(self, edge: Edge) -> Tensor:
            return self.linear(torch.relu(edge.src + edge.dst))

    graph = labelled_graph(N, E)
    graph, found = works_of(GNN([EdgeNetwork(graph.num_features)]), graph, 2)
    product = 2 * graph.num_edges * HIDDEN * graph.num_features
    assert total(found, "gather").flops == 2 * product
    # In the backward the weight's gradient, at least.
    assert total(found, "gather_grad").flops >= 2 * product


def test_gates_cost_exponentials() -> None:
    graph, found = works("gated-gcn", 2)
    assert total(found, "gather").exponentials == graph.num_edges * (graph.num_features + HIDDEN)


def test_seconds_follow_from_rates() -> None:
    assert Work(flops=2e9).seconds(ROUND) == pytest.approx(2.0)
    assert Work(stream_bytes=3e9).seconds(ROUND) == pytest.approx(3.0)
    assert Work(exponentials=1e9).seconds(ROUND) == pytest.approx(1.0)
    # All in cache, and half of it.
    assert Work(gather_bytes=1e9, gathered_from_bytes=1 << 20).seconds(ROUND) == pytest.approx(1.0)
    assert Work(gather_bytes=1e9, gathered_from_bytes=1 << 21).seconds(ROUND) == pytest.approx(0.5 + 5.0)

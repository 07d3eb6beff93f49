"""Rehearsals time the kinds of steps of a plan, and change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.graph import Graph
from sagann.graph.subgraph import subgraph
from sagann.plan.steps import Step
from sagann.runtime.forecasting.rehearsal import rehearse
from sagann.runtime.streaming.stream import foretell
from sagann.runtime.streaming.streamed import StreamedModel
from tests.plan.machines import ROUND
from tests.runtime.forecasting.models import model_and_graph


def test_a_rehearsal_times_every_kind_of_step_and_changes_nothing() -> None:
    model, graph = model_and_graph("gat")
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    planned = foretell(model, graph, budget_bytes=600_000)
    assert planned.plan.num_intervals > 1
    factors = rehearse(model, graph, planned, ROUND)
    steps = [each for each in planned.plan.operations if isinstance(each, Step) and each.kind != "return"]
    assert {(step.kind, step.number, step.backward_pass) for step in steps} <= set(factors)
    assert all(factor > 0 for factor in factors.values())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module.training for module in model.modules())


def test_a_rehearsal_passes_over_intervals_without_vertices() -> None:
    model, graph = model_and_graph()
    assert graph.features is not None
    streamed = StreamedModel(model, list(graph.hops(2)), (0, 0, 0, 700, 2000))
    planned = streamed.plan(graph.features, folded=True)
    assert all(factor > 0 for factor in rehearse(model, graph, planned, ROUND).values())


@pytest.mark.parametrize("rate", [1e2, 1e9])
def test_a_rehearsal_takes_as_much_of_the_graph_as_takes_little_time(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph = model_and_graph()
    cut = []

    def counted(graph: Graph, vertices: torch.Tensor) -> Graph:
        cut.append(len(vertices))
        return subgraph(graph, vertices)

    monkeypatch.setattr("sagann.runtime.forecasting.rehearsal.subgraph", counted)
    monkeypatch.setattr("sagann.runtime.forecasting.rehearsal.MOST_EDGES", 1000)
    planned = foretell(model, graph, budget_bytes=1 << 30)
    assert planned.plan.num_intervals == 1
    machine = replace(ROUND, matmul_flops=1e12, stream_bytes=1e12, gather_bytes=rate, gather_cached_bytes=rate)
    rehearse(model, graph, planned, machine)
    # Of the slow machine some thousand edges, of the fast one all.
    assert [0 < count < 500 for count in cut] == ([True] if rate < 1e9 else [])

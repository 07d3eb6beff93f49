"""What a run has learned divides other graphs; workers are threads."""

from __future__ import annotations

import pytest

from sagann.nn import ModelConfig, build_model
from sagann.partition import vertex_ranges
from sagann.runtime.workers import Workers
from sagann.storage import load_graph
from sagann.train import Contract, Predictor
from sagann.train.balancer import read_learned
from sagann.train.learned import Learned
from tests.cli.test_plan_workers import learned_state
from tests.graphs import labelled_graph
from tests.runtime.workers.threads import in_threads
from tests.train.runs import CPU


def learned(**operations: int) -> Learned:
    """An edge takes a microsecond, and the second of two workers twice as long."""
    found, model = read_learned(learned_state())
    return Learned(model=model, operations={**found, **operations}, device="cpu")


def test_the_first_worker_cuts_a_graph_for_all_workers() -> None:
    topology, costs = load_graph("demo").topology, learned()
    expected = costs.bounds(costs.count(topology), 2)
    share = int(topology.indptr[expected[1]]) / topology.num_edges
    assert share == pytest.approx(2 / 3, abs=0.02)

    def work(workers: Workers) -> tuple[int, ...]:
        return costs.cut(topology, workers)

    assert in_threads(work, 2) == [expected, expected]
    assert costs.knows(2)
    assert costs.for_workers(2) is costs


def test_a_predictor_of_workers_is_cut_by_it() -> None:
    graph, costs = labelled_graph(), learned()
    expected = costs.bounds(costs.count(graph.topology), 2)
    assert expected != vertex_ranges(graph.topology.indptr, 2, "edges")

    def work(workers: Workers) -> tuple[int, ...]:
        model = build_model(ModelConfig(model="sage", hidden=8), graph)
        predictor = Predictor(model, Contract.of(graph), device=CPU, workers=workers, learned=costs)
        part = predictor.prepare(graph).part
        assert part is not None
        return part.bounds

    assert in_threads(work, 2) == [expected, expected]


def test_workers_that_were_not_measured_have_speed_one() -> None:
    topology, costs = labelled_graph().topology, learned()
    assert not costs.knows(3)
    assert costs.for_workers(3).model.speeds == (1.0, 1.0, 1.0)
    bounds = costs.bounds(costs.count(topology), 3)
    edges = [int(each) for each in topology.indptr[list(bounds)].diff()]
    assert max(edges) <= topology.num_edges / 3 + int(topology.in_degrees().max())

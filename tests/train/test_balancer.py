"""Decisions of workers that are balanced by cost, on recorded seconds; workers are threads, and nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from sagann.graph import Graph, Topology, rmat_edges
from sagann.nn import ModelConfig, build_model
from sagann.partition import vertex_ranges
from sagann.runtime.workers import WorkerPart, Workers, worker_part
from sagann.runtime.workers.stopwatch import Lap, Stopwatch
from sagann.storage import load_graph
from sagann.train import Contract, Predictor
from sagann.train.balancer import Balancer, Learned, read_learned
from tests.cli.test_plan_run import learned_state
from tests.graphs import labelled_graph
from tests.runtime.workers.threads import in_threads
from tests.train.runs import CPU

NUM_VERTICES, NUM_EDGES = 3000, 40_000
EDGE_S, VERTEX_S = 1e-4, 4e-4
"Seconds of an edge and of a vertex on a worker of speed 1: an epoch takes seconds, beside which a move takes nothing."


@cache
def graph() -> Graph:
    # Kernels are not compiled while tests are collected: other processes would wait.
    src, dst = rmat_edges(NUM_VERTICES, NUM_EDGES, seed=0, scramble=False)
    topology = Topology.from_coo(src=src, dst=dst, num_src=NUM_VERTICES)
    return Graph(topology=topology, features=torch.zeros(NUM_VERTICES, 3))


@dataclass
class Recorded(Stopwatch):
    """A stopwatch that gives the seconds of a part by a formula, times a factor."""

    part: WorkerPart | None = None
    factor: float = 1.0
    laps: Mapping[str, int] = field(default_factory=lambda: {"forward 0": 0, "forward 1": 64, "backward 1": 64})

    def take(self) -> dict[str, Lap]:
        edges_s, vertices_s = EDGE_S * self.part.topology.num_edges, VERTEX_S * self.part.topology.num_dst
        seconds = {"forward 0": vertices_s, "forward 1": edges_s, "backward 1": edges_s + vertices_s}
        return {
            kind: Lap(row_bytes=width, seconds=1e-7 + self.factor * seconds[kind])
            for kind, width in self.laps.items()
        }


Run = Callable[[Balancer, Recorded], Any]


def balanced(run: Run, size: int = 2, say: Callable[[str], None] = lambda text: None) -> list[Any]:
    """The results of ``run`` at every worker; it gets the worker's balancer and stopwatch."""

    def work(workers: Workers) -> Any:
        workers.balance, watch = "cost", Recorded()
        workers.stopwatch = watch
        watch.part = part = worker_part(graph(), workers, opened=graph())
        balancer = Balancer(part, say=say if workers.is_first else lambda text: None)
        balancer.begin()
        return run(balancer, watch)

    return in_threads(work, size)


def slow(balancer: Balancer, watch: Recorded, rank: int = 1, factor: float = 2.0) -> None:
    watch.factor = factor if balancer.part.workers.rank == rank else 1.0


def slowest_s(bounds: tuple[int, ...], factors: tuple[float, ...]) -> float:
    indptr = graph().topology.indptr
    return max(
        factor * (2 * EDGE_S * int(indptr[stop] - indptr[first]) + 2 * VERTEX_S * (stop - first))
        for (first, stop), factor in zip(pairwise(bounds), factors, strict=True)
    )


def test_two_unequal_workers_settle_within_ten_epochs_near_the_best_division() -> None:
    said: list[str] = []

    def run(balancer: Balancer, watch: Recorded) -> list[dict[str, Any]]:
        slow(balancer, watch)
        return [balancer.settle(100 - epoch) for epoch in range(30)]

    epochs, others = balanced(run, say=said.append)
    # Each worker has its own clock.
    assert epochs == [mine | {"move_s": other["move_s"]} for mine, other in zip(others, epochs, strict=True)]
    assert [epoch["move_s"] is None for epoch in epochs] == [epoch["moved_to"] is None for epoch in epochs]
    moves = [number for number, epoch in enumerate(epochs) if epoch["moved_to"] is not None]
    assert moves
    assert max(moves) < 10
    assert len(said) == len(moves)
    assert said[0].startswith("Vertices move between the workers: new parts take ")
    factors = (1.0, 2.0)
    best_s = min(slowest_s((0, cut, NUM_VERTICES), factors) for cut in range(NUM_VERTICES + 1))
    assert slowest_s(epochs[-1]["worker_bounds"], factors) <= 1.05 * best_s
    assert slowest_s(epochs[0]["worker_bounds"], factors) >= 1.2 * best_s
    # What is recorded is true.
    indptr = graph().topology.indptr
    for before, epoch in pairwise(epochs):
        assert epoch["worker_bounds"] == (before["moved_to"] or before["worker_bounds"])
        assert epoch["worker_edges"] == indptr[epoch["worker_bounds"]].diff().tolist()
        assert max(epoch["worker_s"]) == pytest.approx(slowest_s(epoch["worker_bounds"], factors), rel=1e-3)
    assert epochs[0]["predicted_worker_s"] is epochs[1]["predicted_worker_s"] is None
    assert epochs[-1]["predicted_worker_s"] == pytest.approx(epochs[-1]["worker_s"], rel=0.02)


def test_the_first_epoch_after_a_start_or_a_move_teaches_nothing() -> None:
    def run(balancer: Balancer, watch: Recorded) -> list[dict[str, Any]]:
        found = []
        is_first_epoch = True
        for epoch in range(12):
            # As while kernels are compiled at one worker.
            slow(balancer, watch, factor=50.0 if is_first_epoch else 1.0)
            found.append(balancer.settle(100 - epoch))
            is_first_epoch = found[-1]["moved_to"] is not None
        return found

    epochs, _ = balanced(run)
    assert slowest_s(epochs[-1]["worker_bounds"], (1.0, 1.0)) <= 1.05 * slowest_s(
        epochs[0]["worker_bounds"], (1.0, 1.0)
    )


def test_vertices_stay_where_a_move_cannot_pay() -> None:
    def run(balancer: Balancer, watch: Recorded) -> list[dict[str, Any]]:
        slow(balancer, watch)
        # A move costs about an epoch at first, and would save a third of each of those that are left.
        return [balancer.settle(epochs_left) for epochs_left in (2, 1, 0) * 3]

    assert all(epoch["moved_to"] is None for epoch in balanced(run)[0])


def test_a_worker_without_a_part_is_measured_again() -> None:
    def run(balancer: Balancer, watch: Recorded) -> list[dict[str, Any]]:
        # So slow that not even one vertex pays.
        slow(balancer, watch, rank=1, factor=1e5)
        found = [balancer.settle(1000) for _ in range(12)]
        slow(balancer, watch, factor=1.0)
        return found + [balancer.settle(1000) for _ in range(150)]

    epochs, _ = balanced(run)
    assert epochs[11]["worker_bounds"][1] == NUM_VERTICES
    assert slowest_s(epochs[-1]["worker_bounds"], (1.0, 1.0)) <= 1.05 * slowest_s(
        epochs[0]["worker_bounds"], (1.0, 1.0)
    )


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
    assert costs.unknown_text(2) == ""
    assert costs.model_for(2) is costs.model


def test_a_predictor_of_workers_is_cut_by_it() -> None:
    graph, costs = labelled_graph(), learned()
    expected = costs.bounds(costs.count(graph.topology), 2)
    assert expected != vertex_ranges(graph.topology.indptr, 2, "edges")

    def work(workers: Workers) -> tuple[int, ...]:
        model = build_model(ModelConfig(model="sage", hidden=8), graph)
        predictor = Predictor(model, Contract.of(graph), device=CPU, workers=workers, learned=costs)
        part = predictor.prepare(graph).part
        return part.bounds

    assert in_threads(work, 2) == [expected, expected]


def test_workers_that_were_not_measured_have_speed_one() -> None:
    topology, costs = labelled_graph().topology, learned()
    assert costs.unknown_text(3).startswith("Not 3 workers were measured, but 2")
    assert costs.model_for(3).speeds == (1.0, 1.0, 1.0)
    bounds = costs.bounds(costs.count(topology), 3)
    edges = [int(each) for each in topology.indptr[list(bounds)].diff()]
    assert max(edges) <= topology.num_edges / 3 + int(topology.in_degrees().max())

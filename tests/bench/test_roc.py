"""ROC's cluster by simulation: what learned parts gain, and the page."""

from __future__ import annotations

import pytest

from bench import memory_policies
from bench.memory_policies import Shape
from bench.roc import __main__ as roc, graphs
from bench.roc.epochs import (
    MACHINE,
    Job,
    equal_seconds,
    learned_costs,
    learned_ranges,
    simulated,
)
from bench.roc.graphs import Generated
from sagann.partition import vertex_ranges
from sagann.plan.machine import Machine
from sagann.plan.steps import Move

CLUSTER = Machine.from_toml(MACHINE.read_text(), where=str(MACHINE))
SMALL = Shape(vertices=2_000, edges=16_000, features=200, classes=5)


def test_learned_parts_are_faster_than_equal_vertices_where_degrees_go_by_ids() -> None:
    shape = Shape(vertices=20_000, edges=8_000_000, features=16, classes=4)
    graph, job = Generated.of(shape, hubs_first=True, most_edges=100_000), Job(shape=shape, model="gcn")
    equal = simulated(job, CLUSTER, graph, vertex_ranges(graph.topology.indptr, 4, by="vertices"))
    assert simulated(job, CLUSTER, graph, learned_ranges(job, CLUSTER, graph, 4)).seconds < 0.9 * equal.seconds


def test_what_training_taught_cuts_a_new_graph_for_inference() -> None:
    shape = Shape(vertices=4_000, edges=4_000_000, features=16, classes=4)
    trained, new = (Generated.of(shape, hubs_first=True, most_edges=100_000, seed=seed) for seed in (1, 2))
    training = Job(shape=shape, model="gin")
    using = Job(shape=shape, model="gin", trains=False)
    _, forward = learned_costs(training, CLUSTER, trained, 4)
    learned = simulated(using, CLUSTER, new, equal_seconds(forward, using, new, 4))
    equal = simulated(using, CLUSTER, new, vertex_ranges(new.topology.indptr, 4, by="vertices"))
    assert learned.seconds < equal.seconds
    assert not any(isinstance(each, Move) and each.kind == "all-reduce" for each in learned.joined.plan.operations)
    assert not [step for step, _ in learned.joined.origins.items() if step.kind.endswith("_grad")]


def _cells(block: str) -> list[list[str]]:
    return [text.strip("| ").split(" | ") for text in block.splitlines() if text.startswith("|")]


@pytest.mark.slow
def test_the_page_has_every_section(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(memory_policies.SHAPES, "pubmed", SMALL)
    assert SMALL.edges < graphs.MOST_EDGES
    monkeypatch.setattr(roc, "MODELS", ("gcn",))
    assert roc.main(["--datasets", "pubmed", "--partitioned", "pubmed", "--inferred", "pubmed"]) == 0
    text = capsys.readouterr().out
    tables = {tuple(rows[0]): rows for rows in map(_cells, text.split("\n\n")) if rows}
    for columns, count in (
        (roc.SCALING_COLUMNS, 1),
        (roc.RIVAL_COLUMNS, 3),
        (roc.PARTITION_COLUMNS, 6),
        (roc.LATENCY_COLUMNS, 8),
        (roc.MEMORY_COLUMNS, 6),
    ):
        assert len(tables[columns]) == 2 + count

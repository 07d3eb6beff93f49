"""ROC's cluster by simulation: counts of a cut, one plan of all workers, and the page."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import permutations

import pytest

from bench import memory_policies
from bench.memory_policies import Shape
from bench.roc import __main__ as roc, graphs
from bench.roc.epochs import (
    DEVICES_PER_NODE,
    MACHINE,
    Epoch,
    Job,
    equal_seconds,
    learned_costs,
    learned_ranges,
    planned,
    route,
    simulated,
)
from bench.roc.graphs import Cut, Generated
from sagann.partition import vertex_ranges
from sagann.plan.intervals import sizes
from sagann.plan.machine import Machine
from sagann.plan.simulate import simulate
from sagann.plan.spec import verify
from sagann.plan.steps import MemoryPolicy, Move, Step
from sagann.plan.work import StepWork

CLUSTER = Machine.from_toml(MACHINE.read_text(), where=str(MACHINE))
SMALL = Shape(vertices=2_000, edges=16_000, features=200, classes=5)
JOB = Job(shape=SMALL, model="gcn")
TIGHT_BYTES = 3_000_000
"Memory of a device that two intervals of each worker or more are needed for."


@cache
def graph() -> Generated:
    # Kernels are not compiled while tests are collected: other processes would wait.
    return Generated.of(SMALL, most_edges=4_000)


def ranges_of(workers: int) -> tuple[int, ...]:
    return vertex_ranges(graph().topology.indptr, workers)


def moves_of(epoch: Epoch, kind: str) -> list[Move]:
    return [each for each in epoch.joined.plan.operations if isinstance(each, Move) and each.kind == kind]


def test_the_cluster_has_a_link_between_each_two_devices() -> None:
    for first, second in permutations(range(16), 2):
        link = CLUSTER.links[route(first, second)]
        nodes = [first // DEVICES_PER_NODE, second // DEVICES_PER_NODE]
        expected = () if nodes[0] == nodes[1] else (f"node{nodes[0]}.out", f"node{nodes[1]}.in")
        assert link.switches == expected
        # 100 Gb/s at most, and NVLink 1.0.
        assert link.bytes_per_s <= (12.5e9 if expected else 20e9)


@pytest.mark.parametrize("num_intervals", [1, 3])
def test_counts_are_those_of_the_shape_and_what_is_sent_is_received(num_intervals: int) -> None:
    assert graph().scale == 4
    cut = Cut.of(graph(), ranges_of(4), num_intervals)
    assert int(cut.edges.sum()) == SMALL.edges
    assert cut.bounds[-1] == SMALL.vertices
    assert sum(sum(part.edges.values()) for part in cut.parts) == SMALL.edges
    for part in cut.parts:
        intervals, rows = part.intervals, sizes(part.intervals.bounds)
        assert intervals.num_own == num_intervals
        for place, owner in zip(intervals.halo, intervals.owners, strict=True):
            theirs = cut.parts[owner]
            at = theirs.numbers.index(part.numbers[place])
            assert theirs.intervals.sent[at, intervals.rank] == rows[place] > 0
        # All edges lead to own vertices.
        assert {dst for _, dst in part.edges} <= set(intervals.own)


@pytest.mark.parametrize(
    ("workers", "device_bytes", "policy"),
    [(8, 1 << 30, "belady"), (4, TIGHT_BYTES, "belady"), (4, TIGHT_BYTES, "none")],
)
def test_one_plan_has_the_steps_of_all_workers_and_moves_the_halo(
    workers: int, device_bytes: int, policy: MemoryPolicy
) -> None:
    epoch = simulated(JOB, CLUSTER, graph(), ranges_of(workers), memory_policy=policy, device_bytes=device_bytes)
    assert (epoch.num_intervals > 1) == (device_bytes == TIGHT_BYTES)
    cut = Cut.of(graph(), ranges_of(workers), epoch.num_intervals)
    steps = [each for each in epoch.joined.plan.operations if isinstance(each, Step)]
    assert len(epoch.joined.origins) == len(steps)
    assert Counter(rank for rank, _ in epoch.joined.origins.values()) == {
        part.intervals.rank: sum(
            isinstance(each, Step) and each.exchanged is None
            for each in planned(JOB, part, device_bytes, policy).plan.operations
        )
        for part in cut.parts
    }
    sends, receives = moves_of(epoch, "send"), moves_of(epoch, "receive")
    assert len(sends) == len(receives)
    rows = int(cut.needed.sum())
    # Two layers of 128 and 5 columns, there and back; blocks are rounded up a little.
    travelling = (
        2 * 4 * rows * sum(JOB.program.forms[name].shape[0] for name in {each.block.name for each in sends})
    )
    assert travelling <= sum(each.num_bytes for each in sends) <= 1.3 * travelling + 64 * len(sends)
    assert len(moves_of(epoch, "all-reduce")) == workers
    assert {each.owner for each in steps} == {f"device{rank}" for rank in range(workers)}
    assert max(verify(epoch.joined.plan).values()) <= device_bytes


def test_one_device_has_the_plan_of_one_process() -> None:
    epoch = simulated(JOB, CLUSTER, graph(), ranges_of(1))
    found = planned(JOB, Cut.of(graph(), ranges_of(1), 1).part(0))
    assert epoch.joined.plan.operations == found.plan.operations
    work = StepWork(found.schedule)
    assert epoch.seconds == simulate(found.plan, lambda step: work.of(step).seconds(CLUSTER), CLUSTER).seconds


def test_bytes_between_nodes_go_over_the_network() -> None:
    epoch = simulated(JOB, CLUSTER, graph(), ranges_of(8))
    for each in moves_of(epoch, "send"):
        pair = int(each.owner.removeprefix("device")), int(each.peer.removeprefix("device"))
        assert each.resource == route(*pair)
    assert {"network", "NVLink", "PCIe", "compute"} == set(epoch.busy_s)
    assert "network" not in simulated(JOB, CLUSTER, graph(), ranges_of(4)).busy_s


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
    assert not moves_of(learned, "all-reduce")
    assert not [step for step, _ in learned.joined.origins.items() if step.kind.endswith("_grad")]


def _cells(block: str) -> list[list[str]]:
    return [text.strip("| ").split(" | ") for text in block.splitlines() if text.startswith("|")]


@pytest.mark.slow
def test_the_page_has_every_section(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(memory_policies.SHAPES, "pubmed", SMALL)
    assert SMALL.edges < graphs.MOST_EDGES
    options = [
        "--datasets",
        "pubmed",
        "--partitioned",
        "pubmed",
        "--inferred",
        "pubmed",
    ]
    monkeypatch.setattr(roc, "MODELS", ("gcn",))
    assert roc.main(options) == 0
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

"""Intervals and the grid of edge chunks; how many intervals fit a budget, and what plans and their objects take."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from sagann.byte_size import with_exact
from sagann.errors import InputError
from sagann.graph import Graph
from sagann.nn import build_model
from sagann.nn.zoo import ModelConfig
from sagann.plan import ChunkGrid, equal_vertices, equal_weights, sizes
from sagann.plan.epoch import plan_epoch
from sagann.plan.fit import USEFUL_INTERVALS, fitted_intervals, hop_sizes, least_count
from sagann.plan.gradients import Gradients
from sagann.plan.hops import EdgesOfType, hop_size
from sagann.plan.intervals import PartIntervals
from sagann.plan.residency import BudgetError
from sagann.plan.sizes import needed_bytes, plan_bytes
from sagann.plan.steps import ALL, FILES, uncut_ends
from sagann.runtime.blocks.chunks import Chunks
from sagann.runtime.blocks.host import RamHost
from sagann.runtime.streaming.stream import stream
from tests.graphs import block_of, labelled_graph, odd_topologies, random_topology
from tests.plan.test_schedule import program_of
from tests.tolerances import assert_close


def test_the_least_count_is_the_least() -> None:
    def needed(count: int) -> int:
        return 1000 // count + 10

    for budget in (2000, 600, 100, 35, 21):
        count = least_count(needed, budget, most=500)
        assert needed(count) <= budget
        assert count == 1 or needed(count - 1) > budget
    assert needed(least_count(needed, 11, most=500)) == 12


@pytest.mark.parametrize("best", [1, 2, 3, 11, 23, 40, 77, 300])
def test_a_budget_that_is_named_can_be_met(best: int) -> None:
    def needed(count: int) -> int:
        # As it is: coarse cuts have large blocks, fine ones a cost for every chunk.
        return 100 * max(best, count) ** 2 // min(best, count) ** 2

    named = needed(least_count(needed, 99, most=256))
    assert needed(least_count(needed, named, most=256)) <= named
    # No worse than where the best number lies between two that are tried.
    assert named <= 140


def test_a_budget_that_is_offered_leads_to_few_intervals(tmp_path: Path) -> None:
    graph = labelled_graph(5000, 10_000)
    model = build_model(ModelConfig(model="sage", hidden=16), graph)
    with pytest.raises(BudgetError) as refused:
        stream(model, graph, budget_bytes=50, spill=tmp_path)
    error = refused.value
    assert f"at least {with_exact(error.needed_bytes)} are needed" in error.message
    assert error.hint == (
        f"Raise the budget (--memory, budget_bytes) to {with_exact(error.offered_bytes)} or more. The least that is accepted is "
        f"{with_exact(error.needed_bytes)}, with more intervals and slower epochs."
    )
    with pytest.raises(
        BudgetError, match=r"in the plan of 2 intervals.* or cut into more intervals \(num_intervals\)\."
    ):
        stream(model, graph, budget_bytes=5000, num_intervals=2)(graph.features)
    counts = [
        len(stream(model, graph, budget_bytes=each, spill=tmp_path).bounds) - 1
        for each in (error.needed_bytes, error.offered_bytes)
    ]
    assert USEFUL_INTERVALS // 2 < counts[1] <= USEFUL_INTERVALS < 100 < counts[0]


def model_and_graph(name: str, num_vertices: int, num_edges: int) -> tuple[nn.Module, Graph]:
    graph = labelled_graph(num_vertices, num_edges)
    model = build_model(ModelConfig(model=name, hidden=16, heads=2), graph)
    return model, model.prepare(graph)


@pytest.mark.parametrize(("name", "on_disk"), [("gcn", False), ("gat", True)])
def test_a_budget_decides_the_number_of_intervals(name: str, tmp_path: Path, *, on_disk: bool) -> None:
    model, graph = model_and_graph(name, 200, 900)
    counts = []
    for budget in (1 << 30, 60_000, 30_000, 20_000):
        spill = tmp_path if on_disk else None
        streamed = stream(model, graph, budget_bytes=budget, spill=spill)
        _, schedule, plan = streamed.plan(graph.features)
        assert needed_bytes(list(schedule.epoch()), schedule.sizes.of) <= plan.peak_bytes <= budget
        counts.append(plan.num_intervals)
        streamed(graph.features).sum().backward()
    assert counts == sorted(counts)
    assert counts[0] == 1 < counts[-1]
    with pytest.raises(BudgetError, match=r"bytes\)?, at least .* are needed"):
        stream(model, graph, budget_bytes=50)


@pytest.mark.parametrize(("name", "on_disk"), [("gcn", False), ("gat", True)])
def test_what_is_evaluated_only_needs_less(name: str, tmp_path: Path, *, on_disk: bool) -> None:
    model, graph = model_and_graph(name, 60, 270)
    spill = tmp_path if on_disk else None
    with pytest.raises(BudgetError) as refused:
        stream(model, graph, budget_bytes=50)
    budget = refused.value.needed_bytes
    room = 3 * budget
    trained = stream(model, graph, budget_bytes=room, spill=spill)
    model.eval()
    evaluated = stream(model, graph, budget_bytes=room, spill=spill, trains=False)
    assert len(evaluated.bounds) < len(trained.bounds)
    with torch.no_grad():
        assert evaluated.plan(graph.features).plan.peak_bytes <= room
        assert_close(evaluated(graph.features), model(graph.hops(2), graph.features))
        less = stream(model, graph, budget_bytes=budget - 1, spill=spill, trains=False)
        assert_close(less(graph.features), model(graph.hops(2), graph.features))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_features_are_needed() -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gcn", hidden=4), graph)
    prepared = model.prepare(graph)
    with pytest.raises(InputError, match="a graph that is streamed needs features: there are none"):
        stream(model, replace(prepared, features=None), budget_bytes=1 << 30)
    coo = torch.ones(53, 8).to_sparse_coo()
    with pytest.raises(InputError, match="needs features: they are"):
        stream(model, replace(prepared, features=coo), budget_bytes=1 << 30)


FINE = equal_vertices(200, 20)
BUDGET = 100_000


@pytest.mark.parametrize("name", ["gat", "gcn"])
def test_the_objects_of_a_plan_take_the_bytes_that_are_foretold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "FREE_BYTES", 0)
    monkeypatch.setattr(sizes, "_CHUNK_BYTES", 0)
    program, hops = program_of(name)
    sized, gradients = hop_sizes(program, hops, PartIntervals.of_graph(FINE)), Gradients(program)
    foretold = plan_bytes(program, sized, PartIntervals.of_graph(FINE), gradients, BUDGET, FILES)
    gc.collect()
    tracemalloc.start()
    planned = plan_epoch(
        program, sized, PartIntervals.of_graph(FINE), BUDGET + foretold, gradients=gradients, beside=FILES
    )
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert planned.plan.num_intervals == 20
    assert 0.5 * foretold < taken < 1.4 * foretold


def test_a_budget_that_finer_plans_exceed_is_refused_with_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    program, hops = program_of("gat")
    gradients = Gradients(program)

    def fitted(budget_bytes: int) -> int:
        return len(fitted_intervals(program, hops, budget_bytes, gradients=gradients, beside=FILES).bounds) - 1

    assert fitted(30_000) > 1
    monkeypatch.setattr(sizes, "FREE_BYTES", 0)
    with pytest.raises(
        BudgetError, match="for the objects of the plan, and the others for its largest step"
    ) as caught:
        fitted(30_000)
    needed = caught.value.needed_bytes
    part = fitted_intervals(program, hops, needed, gradients=gradients, beside=FILES)
    sized = hop_sizes(program, hops, part)
    plan_epoch(program, sized, part, needed, gradients=gradients, beside=FILES)
    with pytest.raises(BudgetError, match="for the objects of the plan"):
        plan_epoch(program, sized, part, needed // 2, gradients=gradients, beside=FILES)


TOPOLOGIES = odd_topologies(types=3)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("policy", ["vertices", "edges"])
@pytest.mark.parametrize("most_edges", [0, 5, 1 << 20])
@pytest.mark.parametrize("uncut", [(False, False), (True, False), (False, True)])
def test_the_chunks_are_the_graph(
    name: str, count: int, policy: str, most_edges: int, uncut: tuple[bool, bool]
) -> None:
    topology = TOPOLOGIES[name]
    bounds = (
        equal_vertices(topology.num_dst, count)
        if policy == "vertices"
        else equal_weights(topology.indptr, count, vertex=0, edge=1)
    )
    firsts = {**dict(enumerate(bounds)), ALL: 0}
    rows = PartIntervals.of_graph(bounds).rows
    dst_of = topology.edge_dst().long()
    seen: list[int] = []
    numbers: list[int] = []
    for chunk in ChunkGrid(topology, bounds, most_edges=most_edges, uncut=uncut).chunks():
        part = chunk.topology
        part.validate()
        assert part.num_edges > 0
        assert uncut_ends(chunk.src, chunk.dst) == uncut
        ids = chunk.edge_ids
        assert torch.equal(part.indices.long() + firsts[chunk.src], topology.indices[ids].long())
        assert torch.equal(part.edge_dst().long() + firsts[chunk.dst], dst_of[ids])
        assert int(part.indices.max()) < rows[chunk.src]
        for data, whole in topology.edge_data.items():
            assert torch.equal(part.edge_data[data], whole[ids])
        # Edges of one destination keep their order.
        assert all(first < last or dst_of[first] != dst_of[last] for first, last in pairwise(ids.tolist()))
        seen += ids.tolist()
        numbers += range(chunk.first_edge, chunk.first_edge + part.num_edges)
    assert sorted(seen) == list(range(topology.num_edges))
    assert numbers == list(range(topology.num_edges))


def test_impossible_cuts_are_refused() -> None:
    topology = random_topology(20, 60)
    for bounds in [(0, 10), (0, 12, 5, 20), (1, 20), (0,), ()]:
        with pytest.raises(InputError, match="do not cut the vertices"):
            ChunkGrid(topology, bounds)
    with pytest.raises(
        InputError, match="an interval has destinations and other sources: 20 sources, 5 destinations"
    ):
        ChunkGrid(block_of(topology, 5), (0, 4, 20))


def test_destinations_may_be_the_first_sources_alone() -> None:
    block = block_of(random_topology(20, 60), 5)
    bounds = (0, 3, 5, 11, 20)
    grid = ChunkGrid(block, bounds)
    assert (grid.num_intervals, grid.num_destinations) == (4, 2)
    ids = torch.cat([chunk.edge_ids for chunk in grid.chunks()])
    assert sorted(ids.tolist()) == list(range(block.num_edges))
    for chunk in grid.chunks():
        sources = chunk.topology.indices.long() + bounds[chunk.src]
        assert torch.equal(sources, block.indices.long()[chunk.edge_ids])
    assert hop_size(block, bounds).edges == {
        (chunk.src, chunk.dst): chunk.topology.num_edges for chunk in grid.chunks()
    }


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_sizes_are_known_without_cutting(name: str) -> None:
    topology = TOPOLOGIES[name]
    bounds = equal_vertices(topology.num_dst, 3)
    for hop in (topology, EdgesOfType(topology=topology, data="type", type=1)):
        assert asdict(hop_size(hop, bounds)) == asdict(
            Chunks(hop, PartIntervals.of_graph(bounds), RamHost(), 0).size
        )


def test_a_grid_is_counted_again_when_types_change() -> None:
    typed = random_topology(20, 60, types=2)
    hop, bounds = EdgesOfType(topology=typed, data="type", type=1), equal_vertices(20, 2)
    assert sum(hop_size(hop, bounds).edges.values()) < typed.num_edges
    typed.edge_data["type"].fill_(1)
    assert sum(hop_size(hop, bounds).edges.values()) == typed.num_edges


@settings(max_examples=50, deadline=None)
@given(degrees=st.lists(st.integers(0, 30), min_size=1, max_size=40), count=st.integers(1, 9))
def test_intervals_of_equal_edges(degrees: list[int], count: int) -> None:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    bounds = equal_weights(indptr, count, vertex=0, edge=1)
    assert len(bounds) == count + 1
    assert list(bounds) == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, len(degrees))
    # None has more than its share but for one vertex.
    most = max(int(indptr[last] - indptr[first]) for first, last in pairwise(bounds))
    assert most <= sum(degrees) / count + max(degrees)


def test_no_interval_is_no_cut() -> None:
    for cut in (lambda: equal_vertices(20, 0), lambda: equal_weights(torch.tensor([0, 1]), 0, vertex=0, edge=1)):
        with pytest.raises(InputError, match="vertices cannot be cut into that few intervals: 0, at least 1"):
            cut()

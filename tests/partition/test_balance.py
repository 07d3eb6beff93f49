"""Cuts of vertices: of equal costs, and of equal edges; and the parts that they leave, against a brute force."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement, pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from sagann.errors import InputError
from sagann.graph import Topology
from sagann.graph.counting_sort import Array
from sagann.partition import BALANCES, Part, balanced_bounds, part_of, vertex_ranges
from sagann.plan import equal_vertices
from tests.graphs import odd_topologies, random_topology


def costs_of(each: Sequence[int]) -> Array:
    return np.array([0, *np.cumsum(each, dtype=np.int64)], dtype=np.int64)


def longest_time(costs: Array | range, speeds: Sequence[float], bounds: Sequence[int]) -> float:
    # Differences of prefix costs, as the algorithm computes them.
    before = [float(cost) for cost in costs]
    return max((before[b] - before[a]) / speed for (a, b), speed in zip(pairwise(bounds), speeds, strict=True))


def least_of_all_cuts(costs: Array | range, speeds: Sequence[float]) -> float:
    ids = range(len(costs))
    inner = combinations_with_replacement(ids, len(speeds) - 1)
    return min(longest_time(costs, speeds, (0, *cut, len(costs) - 1)) for cut in inner)


def checked_bounds(costs: Array | range, speeds: Sequence[float]) -> tuple[int, ...]:
    bounds = balanced_bounds(costs, speeds)
    assert len(bounds) == len(speeds) + 1
    assert (bounds[0], bounds[-1]) == (0, len(costs) - 1)
    assert list(bounds) == sorted(bounds)
    return bounds


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("num_vertices", [0, 1, 4])
def test_no_cut_of_a_small_graph_is_better(num_vertices: int, num_workers: int) -> None:
    for each in product([0, 1, 3], repeat=num_vertices):
        costs, speeds = costs_of(each), [1.0] * num_workers
        assert longest_time(costs, speeds, checked_bounds(costs, speeds)) == least_of_all_cuts(costs, speeds)


@given(
    st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**40)), max_size=7),
    st.lists(st.sampled_from([0.1, 0.5, 1.0, 1 / 3, 3.7, 1000.0]), min_size=1, max_size=4),
)
def test_no_cut_for_unequal_workers_is_better(each: list[int], speeds: list[float]) -> None:
    costs = costs_of(each)
    assert longest_time(costs, speeds, checked_bounds(costs, speeds)) == least_of_all_cuts(costs, speeds)


@given(st.integers(0, 2**32), st.integers(0, 7), st.integers(1, 4))
def test_no_cut_by_learned_costs_is_better(seed: int, num_vertices: int, num_workers: int) -> None:
    random = np.random.default_rng(seed)
    sums = np.zeros((num_vertices + 1, 3), dtype=np.int64)
    sums[1:] = random.integers(0, 50, (num_vertices, 3)).cumsum(0)
    costs, speeds = sums @ (random.random(3) * 1e-9), (random.random(num_workers) + 0.1).tolist()
    assert longest_time(costs, speeds, checked_bounds(costs, speeds)) == least_of_all_cuts(costs, speeds)


@given(st.integers(0, 100), st.integers(1, 20))
def test_equal_vertices_differ_by_one_at_most(num_vertices: int, num_workers: int) -> None:
    bounds = checked_bounds(range(num_vertices + 1), [1.0] * num_workers)
    sizes = np.diff(bounds)
    assert sizes.max() - sizes.min() <= 1
    assert sizes.max() == np.diff(equal_vertices(num_vertices, num_workers)).max()


def test_a_hub_does_not_pile_the_rest_on_the_first_workers() -> None:
    # Whatever the cut, the hub takes 90: parts beside it are as equal as its own part allows.
    assert balanced_bounds(costs_of([1] * 30 + [90] + [1] * 30), [1.0] * 4)[1] in range(28, 31)
    assert balanced_bounds(costs_of([90] + [1] * 60), [1.0, 1.0, 1.0]) == (0, 1, 11, 61)


def test_more_workers_than_vertices_leave_parts_empty() -> None:
    assert np.diff(balanced_bounds(range(3), [1.0] * 5)).tolist().count(1) == 2
    assert balanced_bounds(range(1), [1.0, 1.0]) == (0, 0, 0)


def test_a_worker_too_slow_for_any_vertex_has_none() -> None:
    assert balanced_bounds(range(5), [1.0, 0.01, 1.0]) == (0, 2, 2, 4)


def test_integers_are_exact_to_the_last_edge() -> None:
    # The second best cut has one edge in 2^50 more.
    costs = costs_of([2**50, 1, 2**50 - 1])
    assert balanced_bounds(costs, [1.0, 1.0]) == (0, 1, 3)
    assert longest_time(costs, [1.0, 1.0], (0, 2, 3)) == 2**50 + 1


TOPOLOGIES = {**odd_topologies(), "large": random_topology(300, 2000)}


def edges_of(topology: Topology, bounds: tuple[int, ...]) -> list[int]:
    return topology.indptr[list(bounds)].diff().tolist()


@pytest.mark.parametrize("num_ranges", [2, 8])
def test_ranges_of_equal_edges_differ_by_the_largest_in_degree_at_most(num_ranges: int) -> None:
    topology = random_topology(500, 6000)
    share = topology.num_edges / num_ranges
    most = int(topology.in_degrees().max())
    found = edges_of(topology, vertex_ranges(topology.indptr, num_ranges))
    assert all(abs(edges - share) <= most for edges in found)


def test_a_hub_leaves_ranges_empty() -> None:
    topology = TOPOLOGIES["one hub"]
    bounds = vertex_ranges(topology.indptr, 3)
    assert sorted(edges_of(topology, bounds)) == [0, 0, topology.num_edges]


def test_without_edges_vertices_are_divided() -> None:
    assert vertex_ranges(torch.zeros(5, dtype=torch.int64), 2) == (0, 2, 4)


def test_workers_that_are_balanced_by_cost_begin_with_equal_edges() -> None:
    indptr = torch.tensor([0, 4, 5, 6, 8])
    assert BALANCES == ("edges", "vertices", "cost")
    assert vertex_ranges(indptr, 2, "cost") == vertex_ranges(indptr, 2, "edges") == (0, 1, 4)
    assert vertex_ranges(indptr, 2, "vertices") == (0, 2, 4)
    with pytest.raises(InputError, match="unknown balance: 'time', expected one of edges, vertices, cost"):
        vertex_ranges(indptr, 2, "time")


def pairs_of(topology: Topology) -> list[tuple[int, int]]:
    return list(zip(topology.indices.tolist(), topology.edge_dst().tolist(), strict=True))


def parts_of(topology: Topology, num_parts: int, balance: str) -> list[Part]:
    bounds = vertex_ranges(topology.indptr, num_parts, balance)
    return [part_of(topology, bounds, rank) for rank in range(num_parts)]


@pytest.mark.parametrize("balance", ["edges", "vertices"])
@pytest.mark.parametrize("num_parts", [1, 3, 60])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_parts_equal_a_brute_force(name: str, num_parts: int, balance: str) -> None:
    topology = TOPOLOGIES[name]
    edges, found = pairs_of(topology), []
    parts = parts_of(topology, num_parts, balance)
    for part in parts:
        own = range(part.vertices.start, part.vertices.stop)
        inside = [(src, dst) for src, dst in edges if dst in own]
        assert part.halo.tolist() == sorted({src for src, _ in inside} - set(own))
        ids = [*own, *part.halo.tolist()]
        local = Topology(indptr=part.indptr, indices=part.indices, num_src=part.num_src)
        assert [(ids[src], ids[dst]) for src, dst in pairs_of(local)] == inside == edges[part.edges]
        assert torch.equal(part.sources(), topology.indices[part.edges])
        found += inside
    assert found == edges


@pytest.mark.parametrize("num_parts", [2, 60])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_is_sent_is_what_is_needed(name: str, num_parts: int) -> None:
    topology = TOPOLOGIES[name]
    rows = torch.arange(topology.num_dst) * 10
    parts = parts_of(topology, num_parts, "edges")
    wanted = [[each.halo[place] for place in each.halo_by_owner()] for each in parts]
    for receiver in parts:
        received = []
        for owner in parts:
            sent = [wanted[other.rank][owner.rank] - owner.vertices.start for other in parts]
            assert len(sent[owner.rank]) == 0
            received.append(rows[owner.vertices][sent[receiver.rank]])
        assert torch.equal(torch.cat(received), rows[receiver.halo])


def test_only_the_part_is_read_of_the_edges() -> None:
    topology = random_topology(300, 2000)
    bounds = vertex_ranges(topology.indptr, 3)
    expected = part_of(topology, bounds, 1)
    poisoned = topology.indices.clone()
    poisoned[: expected.edges.start] = -(2**31)
    poisoned[expected.edges.stop :] = -(2**31)
    read = Topology(indptr=topology.indptr, indices=poisoned, num_src=300, validate=False)
    assert torch.equal(part_of(read, bounds, 1).indices, expected.indices)

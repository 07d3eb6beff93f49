"""Scores against their naive twins; where rows lie by them, and which rows are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.graph.rmat import rmat_edges
from sagann.sampling import NeighborSampler, seed_batches
from sagann.tiering import (
    SCORES,
    access_curve,
    hottest,
    inclusion_probability,
    labelled_vertices,
    measured_accesses,
    out_degree,
    reverse_pagerank,
    score_vertices,
    weighted_reverse_pagerank,
)
from sagann.tiering.placement import place_hot_rows
from sagann.tiering.scores import spread
from tests.graphs import block_of, labelled_graph, odd_topologies, random_topology
from tests.tiering import naive_scores as naive
from tests.tolerances import assert_close

TOPOLOGIES = odd_topologies()


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_out_degrees(name: str) -> None:
    topology = TOPOLOGIES[name]
    assert torch.equal(out_degree(topology), naive.edge_counts(topology).sum(1))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_reverse_pagerank_is_the_fixed_point(name: str) -> None:
    topology = TOPOLOGIES[name]
    found, expected = reverse_pagerank(topology), naive.reverse_pagerank(topology)
    # The last change is below 1e-6; with a damping of 0.85, all that would follow add up to less than 0.85 / 0.15 times that.
    assert float((found - expected).abs().sum()) < 1e-6 * 0.85 / 0.15


@pytest.mark.parametrize("iterations", [0, 5])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_weighted_reverse_pagerank(name: str, iterations: int) -> None:
    topology = TOPOLOGIES[name]
    labelled = torch.arange(topology.num_src) % 3 == 1
    found = weighted_reverse_pagerank(topology, labelled, iterations=iterations)
    assert_close(found, naive.weighted_reverse_pagerank(topology, labelled, iterations=iterations))


@pytest.mark.parametrize("fanouts", [[1], [3, -1, 2]])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_inclusion_probabilities(name: str, fanouts: list[int]) -> None:
    topology = TOPOLOGIES[name]
    labelled = torch.arange(topology.num_src) % 3 == 1
    for batch_size in (2, 1000):
        found = inclusion_probability(topology, labelled, fanouts, batch_size=batch_size)
        assert_close(found, naive.inclusion_probability(topology, labelled, fanouts, batch_size))
        assert float(found.min()) >= 0
        assert float(found.max()) <= 1


def test_inclusion_probabilities_foretell_what_is_read() -> None:
    src, dst = rmat_edges(2000, 30_000, seed=0)
    src, dst = torch.stack([src, dst]).unique(dim=1)
    topology = Topology.from_coo(src=src, dst=dst, num_src=2000)
    labelled = torch.arange(2000) % 10 == 0
    seeds, epochs = labelled.nonzero().squeeze(1), 50
    for fanouts, batch_size, tolerance in (([4], 20, 0.03), ([4, 3], 20, 0.1)):
        reads = torch.zeros(2000, dtype=torch.int64)
        for epoch in range(epochs):
            reads += measured_accesses(topology, seeds, fanouts, batch_size=batch_size, epoch=epoch)
        probability = inclusion_probability(topology, labelled, fanouts, batch_size=batch_size)
        assert float(probability.sum()) * epochs * 200 / batch_size == pytest.approx(
            int(reads.sum()), rel=tolerance
        )
        of_hottest, of_oracle = (float(access_curve(score, reads)[200]) for score in (probability, reads))
        assert of_hottest >= 0.97 * of_oracle


def test_scores_have_the_same_bits_for_any_number_of_threads(threads: Any) -> None:
    src, dst = rmat_edges(3000, 200_000, seed=0)
    graph = Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=3000), splits={"train": torch.arange(3000) % 50 == 0}
    )
    threads(1)
    expected = [score_vertices(graph, by) for by in SCORES]
    threads(3)
    assert all(torch.equal(score_vertices(graph, by), one) for by, one in zip(SCORES, expected, strict=True))


def test_a_graph_without_vertices_has_no_scores() -> None:
    topology = Topology(indptr=torch.tensor([0]), indices=torch.empty(0, dtype=torch.int32), num_src=0)
    assert len(out_degree(topology)) == len(reverse_pagerank(topology)) == len(hottest(torch.empty(0))) == 0


def test_the_hottest_come_first_and_equal_scores_by_id() -> None:
    score = torch.tensor([0.1, 0.4, 0.2, 0.4, 0.4])
    assert hottest(score).tolist() == [1, 3, 4, 2, 0]
    assert hottest(torch.tensor([3, 5, 5])).tolist() == [1, 2, 0]


def test_batches_start_from_the_training_split_or_else_from_labels() -> None:
    graph = labelled_graph()
    assert torch.equal(labelled_vertices(graph), graph.splits["train"])
    labels = torch.where(torch.arange(graph.num_vertices) < 7, 0, -1)
    assert int(labelled_vertices(replace(graph, splits={}, labels=labels)).sum()) == 7
    both = labelled_vertices(replace(graph, labels=labels))
    assert torch.equal(both, graph.splits["train"] & (labels == 0))
    assert torch.equal(labelled_vertices(replace(graph, labels=None)), graph.splits["train"])
    several = torch.zeros(graph.num_vertices, 3, dtype=torch.uint8)
    assert bool(labelled_vertices(replace(graph, splits={}, labels=several)).all())
    with pytest.raises(
        InputError, match=r"no vertex is labelled: neither a split 'train' nor labels .*'rpr' or 'degree'"
    ):
        labelled_vertices(replace(graph, splits={}, labels=None))


def test_scores_by_name() -> None:
    graph = labelled_graph()
    assert torch.equal(score_vertices(graph, "degree"), out_degree(graph.topology))
    assert torch.equal(score_vertices(graph, "rpr"), reverse_pagerank(graph.topology))
    expected = weighted_reverse_pagerank(graph.topology, graph.splits["train"])
    assert torch.equal(score_vertices(graph, "wrpr"), expected)
    expected = inclusion_probability(graph.topology, graph.splits["train"], [3], batch_size=2)
    assert torch.equal(score_vertices(graph, "vip", fanouts=[3], batch_size=2), expected)
    expected = inclusion_probability(graph.topology, graph.splits["train"], [25, 10], batch_size=1024)
    assert torch.equal(score_vertices(graph, "vip"), expected)
    seeds = torch.arange(graph.num_vertices) < 5
    expected = weighted_reverse_pagerank(graph.topology, seeds)
    assert torch.equal(score_vertices(replace(graph, labels=None, splits={}), "wrpr", seeds=seeds), expected)
    assert torch.equal(score_vertices(graph, "wrpr", seeds=seeds), expected)


def test_what_cannot_be_scored_is_refused() -> None:
    topology = odd_topologies()["skewed"]
    labelled = torch.ones(53, dtype=torch.bool)
    for score in (
        out_degree,
        reverse_pagerank,
        lambda block: weighted_reverse_pagerank(block, labelled[:10]),
        lambda block: inclusion_probability(block, labelled[:10], [2]),
    ):
        with pytest.raises(InputError, match="sources and destinations differ: 53 sources, 10 destinations"):
            score(block_of(topology, 10))
    for graph, by, options, message in (
        (topology.to("meta"), "rpr", {}, "they are on a device of type 'meta'"),
        (topology, "vip", {"seeds": labelled, "batch_size": 0}, "batch_size is out of range: 0"),
        (topology, "vip", {"seeds": labelled, "fanouts": [2, 0]}, "fanout out of range: 0, .* fanouts, hop 1"),
        (topology, "vip", {"seeds": ~labelled}, "no vertex is labelled: 0 of 53 vertices"),
        (topology, "wrpr", {"seeds": torch.tensor([1, 2])}, r"torch.int64 \[2\], expected torch.bool \[53\]"),
        (topology, "wrpr", {"seeds": ~labelled}, "no vertex is labelled: 0 of 53 vertices"),
        (topology, "pagerank", {}, "unknown score: 'pagerank', expected one of degree, rpr, wrpr, vip"),
    ):
        with pytest.raises(InputError, match=message):
            score_vertices(Graph(topology=graph), by, **options)
    with pytest.raises(InputError, match="iterations is out of range: -1"):
        weighted_reverse_pagerank(topology, labelled, iterations=-1)
    with pytest.raises(InputError, match=r"1 of NaN"):
        hottest(torch.tensor([0.0, float("nan")]))


def test_a_device_with_a_link_to_a_part_of_a_group_is_alone() -> None:
    groups = place_hot_rows([2] * 3, num_rows=9, linked=lambda first, second: {first, second} != {0, 2})
    assert [group.devices for group in groups] == [(0, 1), (2,)]


def test_all_may_be_replicated() -> None:
    (group,) = place_hot_rows([5, 3], num_rows=100, replicated=1.0)
    # The larger device has room for two rows more.
    assert group.seen_from(1)[0].tolist() == [1, 1, 1, 0, 0]
    (group,) = place_hot_rows([5, 5], num_rows=4, replicated=1.0)
    assert (group.num_replicated, group.num_hot_rows) == (4, 4)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=5),
    st.integers(0, 60),
    st.floats(0, 1),
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4))),
)
def test_rows_lie_where_they_are_read_from(
    num_slots: list[int], num_rows: int, replicated: float, links: set[tuple[int, int]]
) -> None:
    groups = place_hot_rows(
        num_slots,
        num_rows=num_rows,
        replicated=replicated,
        linked=lambda first, second: (first, second) in links or (second, first) in links,
    )
    assert sorted(device for group in groups for device in group.devices) == list(range(len(num_slots)))
    for group in groups:
        held = {device: group.held_by(device) for device in group.devices}
        for device in group.devices:
            assert len(held[device]) <= num_slots[device]
            owners, slots = group.seen_from(device)
            assert len(owners) == group.num_hot_rows <= num_rows
            assert [held[owner][slot] for owner, slot in zip(owners, slots, strict=True)] == list(
                range(len(owners))
            )
        # All room is used, unless there are no more rows.
        wanted = sum(num_slots[device] - group.num_replicated for device in group.devices) + group.num_replicated
        assert group.num_hot_rows == min(num_rows, wanted)
        # Of any number of hottest rows that fit everywhere, no device has two more than another one.
        full = min(num_slots[device] for device in group.devices) - group.num_replicated
        counts = np.bincount(group.owner[: full * len(group.devices)], minlength=len(num_slots))
        assert np.ptp(counts[list(group.devices)]) <= 1


@pytest.mark.parametrize("replicated", [-0.1, 1.5, float("nan")])
def test_a_part_out_of_range_is_refused(replicated: float) -> None:
    with pytest.raises(
        InputError, match=r"part out of range: .*, expected 0.0 to 1.0 \(in replicated\)\. Give the part"
    ):
        place_hot_rows([1], num_rows=2, replicated=replicated)


@pytest.mark.parametrize("name", odd_topologies())
def test_counts_are_those_of_the_batches(name: str) -> None:
    topology = odd_topologies()[name]
    seeds = torch.arange(0, topology.num_src, 2)
    expected = [0] * topology.num_src
    sampler = NeighborSampler(topology, [3, 2], seed=4)
    for number, batch in enumerate(seed_batches(seeds, 2, seed=4, epoch=1)):
        for vertex in sampler.sample(batch, epoch=1, batch=number).src_ids.tolist():
            expected[vertex] += 1
    found = measured_accesses(topology, seeds, [3, 2], batch_size=2, seed=4, epoch=1)
    assert found.dtype == torch.int64
    assert found.tolist() == expected


def test_an_error_of_a_batch_surfaces() -> None:
    with pytest.raises(InputError, match="vertex id out of range: 60"):
        measured_accesses(random_topology(53, 400), torch.tensor([1, 60]), [2], batch_size=1)


def test_the_curve_is_the_share_of_the_hottest_rows() -> None:
    counts = torch.tensor([3, 0, 1, 6])
    score = torch.tensor([0.1, 0.2, 0.3, 0.3])
    curve = access_curve(score, counts)
    assert hottest(score).tolist() == [2, 3, 1, 0]
    assert curve.tolist() == pytest.approx([0, 0.1, 0.7, 0.7, 1.0])
    oracle = access_curve(counts, counts)
    assert oracle.tolist() == pytest.approx([0, 0.6, 0.9, 1.0, 1.0])
    assert bool((oracle >= curve).all())


def test_curves_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(InputError, match=r"scores and counts differ in number: \[2\] and \[3\]"):
        access_curve(torch.zeros(2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="no row was read: 0 reads of 3 rows"):
        access_curve(torch.zeros(3), torch.zeros(3, dtype=torch.int64))


def values_of(num_dst: int) -> Tensor:
    return torch.rand(num_dst, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def in_order_of_edges(topology: Topology, values: Tensor) -> Tensor:
    """One plain loop: what any number of threads gives, to the last bit."""
    result = np.zeros(topology.num_src)
    np.add.at(result, topology.indices.numpy(), values[topology.edge_dst().long()].numpy())
    return torch.from_numpy(result)


@pytest.fixture(scope="module")
def power_law() -> Topology:
    src, dst = rmat_edges(3000, 200_000, seed=0)
    return Topology.from_coo(src=src, dst=dst, num_src=3000)


def test_values_are_added_in_the_order_of_the_edges(power_law: Topology) -> None:
    values = values_of(power_law.num_dst)
    assert torch.equal(spread(power_law, values), in_order_of_edges(power_law, values))


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_edges_of_destinations_without_a_value_are_not_read(power_law: Topology, share: float) -> None:
    values = values_of(power_law.num_dst)
    # A sum of logarithms begins with zeros of either sign.
    values[values > share] = -0.0
    # No source has the ids in the place of edges that give nothing.
    indices = power_law.indices.where(values[power_law.edge_dst().long()] != 0, -1)
    unread = Topology(indptr=power_law.indptr, indices=indices, num_src=power_law.num_src, validate=False)
    assert torch.equal(spread(unread, values), in_order_of_edges(power_law, values))

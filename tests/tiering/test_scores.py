"""Scores against their naive twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.graph.rmat import rmat_edges
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
from tests.graphs import block_of, labelled_graph, odd_topologies, topology_of
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


def test_the_weight_draws_scores_to_the_labelled_vertices() -> None:
    # Two equal chains; the first ends at the only labelled vertex.
    topology = topology_of([(2, 1), (1, 0), (5, 4), (4, 3)], 6)
    score = weighted_reverse_pagerank(topology, torch.arange(6) == 0, iterations=1)
    assert score[1] > score[4]
    assert reverse_pagerank(topology)[1] == reverse_pagerank(topology)[4]


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
    for graph, by, given, message in (
        (topology.to("meta"), "rpr", {}, "they are on a device of type 'meta'"),
        (topology, "vip", {"seeds": labelled, "batch_size": 0}, "batch_size is out of range: 0"),
        (topology, "vip", {"seeds": labelled, "fanouts": [2, 0]}, "fanout out of range: 0, .* fanouts, hop 1"),
        (topology, "vip", {"seeds": ~labelled}, "no vertex is labelled: 0 of 53 vertices"),
        (topology, "wrpr", {"seeds": torch.tensor([1, 2])}, r"torch.int64 \[2\], expected torch.bool \[53\]"),
        (topology, "wrpr", {"seeds": ~labelled}, "no vertex is labelled: 0 of 53 vertices"),
        (topology, "pagerank", {}, "unknown score: 'pagerank', expected one of degree, rpr, wrpr, vip"),
    ):
        with pytest.raises(InputError, match=message):
            score_vertices(Graph(topology=graph), by, **given)
    with pytest.raises(InputError, match="iterations is out of range: -1"):
        weighted_reverse_pagerank(topology, labelled, iterations=-1)
    with pytest.raises(InputError, match=r"1 of NaN"):
        hottest(torch.tensor([0.0, float("nan")]))

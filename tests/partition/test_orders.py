"""Orders of vertices by name."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from sagann.errors import InputError, MissingDependencyError
from sagann.graph import Graph, Topology, relabel, sbm_graph
from sagann.partition import VERTEX_ORDERS, vertex_order
from sagann.partition.orders import metis_order
from sagann.plan import equal_vertices
from sagann.plan.hops import hop_size
from sagann.tiering import hottest, score_vertices
from tests.graphs import labelled_graph, odd_topologies


def blocks(num_vertices: int = 600) -> Graph:
    return sbm_graph(
        num_vertices, num_classes=6, average_degree=10, homophily=0.95, num_features=2, feature_noise=0.1, seed=0
    )


def crossing(graph: Graph, count: int) -> float:
    """The share of edges between different intervals."""
    edges = hop_size(graph.topology, equal_vertices(graph.num_vertices, count)).edges
    return sum(number for (src, dst), number in edges.items() if src != dst) / graph.num_edges


@pytest.mark.parametrize("by", VERTEX_ORDERS)
@pytest.mark.parametrize("name", odd_topologies())
def test_every_order_is_a_permutation(by: str, name: str) -> None:
    topology = odd_topologies()[name]
    graph = Graph(topology=topology, splits={"train": torch.arange(topology.num_dst) < 2})
    order = vertex_order(graph, by, num_parts=4)
    assert order.dtype == torch.int64
    assert order.sort().values.tolist() == list(range(topology.num_dst))


def test_metis_brings_neighbours_together() -> None:
    graph = blocks()
    found = {by: relabel(graph, vertex_order(graph, by, num_parts=12)) for by in ("metis", "random")}
    assert crossing(found["random"], 6) > 0.8
    # An edge in twenty joins two communities of about a hundred vertices; intervals cut through some.
    assert crossing(found["metis"], 6) < 0.3
    assert crossing(found["metis"], 3) < crossing(found["metis"], 6)


def test_the_same_seed_gives_the_same_order() -> None:
    graph = blocks(200)
    for by in VERTEX_ORDERS:
        assert torch.equal(vertex_order(graph, by, seed=3), vertex_order(graph, by, seed=3))
    assert not torch.equal(vertex_order(graph, "random", seed=3), vertex_order(graph, "random", seed=4))


def test_the_order_by_score_begins_with_the_hottest() -> None:
    graph = labelled_graph()
    assert torch.equal(vertex_order(graph, "score"), hottest(score_vertices(graph, "vip")))
    by_degree = vertex_order(graph, "score", score="degree")
    degrees = torch.bincount(graph.topology.indices, minlength=graph.num_vertices)[by_degree]
    assert bool((degrees.diff() <= 0).all())
    with pytest.raises(InputError, match="unknown score: 'heat', expected one of degree, rpr, wrpr, vip"):
        vertex_order(graph, "score", score="heat")
    with pytest.raises(InputError, match="no vertex is labelled"):
        vertex_order(replace(graph, splits={}, labels=None), "score")


def test_one_part_is_the_order_that_there_was() -> None:
    assert metis_order(blocks(50).topology, num_parts=1, seed=0).tolist() == list(range(50))


def test_several_graphs_stay_apart() -> None:
    src = torch.tensor([0, 1, 2, 3, 4, 5, 6])
    dst = torch.tensor([1, 0, 3, 4, 2, 6, 5])
    labels, graph_ptr = torch.zeros(7, dtype=torch.int64), torch.tensor([0, 2, 5, 7])
    graph = Graph(topology=Topology.from_coo(src=src, dst=dst, num_src=7), labels=labels, graph_ptr=graph_ptr)
    for by in VERTEX_ORDERS:
        found = relabel(graph, vertex_order(graph, by, num_parts=3))
        assert found.graph_ptr.tolist() == [0, 2, 5, 7]


def test_what_cannot_be_done_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = replace(labelled_graph(), graph_ptr=None)
    with pytest.raises(
        InputError, match="unknown order of vertices: 'size', expected one of metis, degree, score, random"
    ):
        vertex_order(graph, "size")
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(
        MissingDependencyError, match=r"pymetis cannot be imported .* pip install 'sagann\[metis\]'"
    ):
        vertex_order(graph, "metis")


@pytest.mark.parametrize("seed", [np.int64(3), 2**64 + 7])
def test_metis_takes_any_seed(seed: int) -> None:
    graph = labelled_graph()
    assert len(vertex_order(graph, "metis", seed=seed)) == graph.num_vertices

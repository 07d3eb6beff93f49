"""Generated graphs: R-MAT and the block model."""

import numpy as np
import pytest
import torch

from sagann.errors import InputError
from sagann.graph.random_numbers import key_of
from sagann.graph.rmat import Quadrants, permute, rmat_edges, rmat_graph
from sagann.graph.sbm import demo_graph, sbm_graph
from sagann.graph.transform import coalesce, remove_self_loops, symmetrise
from sagann.graph.validate import validate_graph
from tests.graph.graphs import edges_of


@pytest.mark.parametrize("num_vertices", [1, 5, 1025])
@pytest.mark.parametrize("scramble", [True, False])
def test_any_number_of_vertices(num_vertices, scramble):
    src, dst = rmat_edges(num_vertices, 20_000, seed=0, scramble=scramble)
    for ids in (src, dst):
        assert ids.dtype == torch.int32
        assert ids.min() >= 0
        assert ids.max() < num_vertices
    # The corner is reached, also where the grid is larger than the graph.
    if num_vertices < 10:
        assert len(torch.stack([src, dst], 1).unique(dim=0)) == num_vertices**2


def test_quadrants_have_the_probabilities_asked_for():
    shape = Quadrants(a=0.4, b=0.3, c=0.2, d=0.1)
    src, dst = rmat_edges(1 << 10, 200_000, seed=1, quadrants=shape, scramble=False)
    for bit in (0, 5, 9):
        quadrant = 2 * ((src >> bit) & 1) + ((dst >> bit) & 1)
        shares = torch.bincount(quadrant) / len(src)
        torch.testing.assert_close(shares, torch.tensor([0.4, 0.3, 0.2, 0.1]), atol=0.006, rtol=0)


def test_degrees_follow_a_power_law_and_scrambling_hides_them():
    for scramble in (False, True):
        _, dst = rmat_edges(1 << 14, 1 << 18, seed=0, scramble=scramble)
        degrees = torch.bincount(dst, minlength=1 << 14).double()
        top = degrees.sort(descending=True).values[: 1 << 14 >> 6]
        # One vertex in 64 holds more than a third of the edges; evenly it would be 1.6 %.
        assert top.sum() / degrees.sum() > 0.33
        first_half = degrees[: 1 << 13].sum() / degrees.sum()
        assert (abs(first_half - 0.5) < 0.1) == scramble


@pytest.mark.parametrize("end", [1, 5, 1023, 1024])
def test_scrambling_is_a_permutation(end):
    key, levels = key_of(9, 1), (end - 1).bit_length()
    scrambled = [int(permute(np.uint64(v), key, levels, np.uint64(end))) for v in range(end)]
    assert sorted(scrambled) == list(range(end))


def test_wide_ids_where_int32_does_not_hold_them():
    src, dst = rmat_edges(2**31 + 10, 10_000, seed=0)
    assert src.dtype == dst.dtype == torch.int64
    assert dst.max() > 2**30


def test_a_graph_with_features_labels_and_splits():
    graph = rmat_graph(500, 3000, num_features=8, num_classes=4, seed=2)
    validate_graph(graph)
    assert (graph.num_vertices, graph.num_edges, graph.num_features) == (500, 3000, 8)
    assert graph.labels.unique().tolist() == [0, 1, 2, 3]
    again = rmat_graph(500, 3000, num_features=8, num_classes=4, seed=2)
    assert torch.equal(again.topology.indices, graph.topology.indices)
    assert torch.equal(again.features, graph.features)
    bare = rmat_graph(0, 0, seed=0)
    assert (bare.features, bare.labels, bare.num_edges) == (None, None, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rmat_edges(5, 5, seed=0, first=3, count=3), "3 edges from 3, but there are 5"),
        (lambda: rmat_edges(0, 5, seed=0), "edges need vertices: 0 vertices, 5 edges"),
        (lambda: Quadrants(a=0.9), r"do not add up: 0\.9, 0\.19, 0\.19, 0\.05, expected each .* a sum of 1"),
    ],
)
def test_impossible_graphs_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


PARAMETERS = {
    "num_classes": 4,
    "average_degree": 8.0,
    "homophily": 0.7,
    "num_features": 16,
    "feature_noise": 0.5,
    "seed": 3,
}


def make(num_vertices=4000, **changes):
    return sbm_graph(num_vertices, **{**PARAMETERS, **changes})


def same_class_share(graph):
    topology = graph.topology
    return float((graph.labels[topology.indices.long()] == graph.labels[topology.edge_dst().long()]).float().mean())


def test_the_graph_is_simple_undirected_and_of_the_size_asked_for():
    graph = make()
    validate_graph(graph)
    assert (graph.num_vertices, graph.num_edges, graph.num_features, graph.num_classes) == (4000, 32_000, 16, 4)
    assert remove_self_loops(graph) is graph
    assert edges_of(symmetrise(graph)) == edges_of(coalesce(graph))
    assert coalesce(graph).num_edges == graph.num_edges


@pytest.mark.parametrize("homophily", [0.0, 0.7, 1.0])
def test_homophily_is_the_one_asked_for(homophily):
    # 16,000 undirected edges: one standard error is at most 0.004. Replacing repeated edges costs a little more.
    assert abs(same_class_share(make(homophily=homophily)) - homophily) < 0.025


def test_a_lower_exponent_makes_larger_hubs():
    steep, heavy = make(degree_exponent=6.0), make(degree_exponent=2.1)
    assert heavy.topology.in_degrees().max() > 2 * steep.topology.in_degrees().max()


def test_classes_are_balanced_and_features_lie_around_their_centres():
    graph = make(feature_noise=0.1)
    counts = torch.bincount(graph.labels)
    assert counts.min() > 850
    assert counts.max() < 1150
    for label in range(4):
        members = graph.features[graph.labels == label]
        assert (members - members.mean(0)).std() == pytest.approx(0.1, rel=0.03)
    exact = make(feature_noise=0.0)
    assert len(exact.features.unique(dim=0)) == 4


def test_tiny_and_dense_graphs():
    assert make(0, average_degree=0.0).num_vertices == 0
    assert make(1, average_degree=0.0).num_edges == 0
    # Every pair but for a few: the rounds end although not all were found.
    dense = make(12, average_degree=11.0, num_classes=1)
    assert 100 <= dense.num_edges <= 132
    # Alone in its class and with no other class to go to, a vertex finds no partner.
    assert make(2, average_degree=1.0, num_classes=1, homophily=0.0).num_edges == 2
    assert make(5, average_degree=1.0, num_classes=1000, homophily=1.0).num_edges == 0


@pytest.mark.parametrize(
    ("changes", "value", "name"),
    [
        ({"homophily": 1.5}, "1.5, expected from 0 to 1", "homophily"),
        ({"average_degree": 4000}, "4000, expected from 0 to num_vertices - 1", "average_degree"),
        ({"degree_exponent": 2.0}, "2, expected above 2", "degree_exponent"),
        ({"feature_noise": float("nan")}, r"nan, expected from 0 to 1e\+36", "feature_noise"),
    ],
)
def test_parameters_out_of_range_are_refused(changes, value, name):
    with pytest.raises(InputError, match=rf"out of range: {value} \(in {name} of sbm_graph\)"):
        make(**changes)


def test_the_demo_looks_like_pubmed():
    graph = demo_graph()
    validate_graph(graph)
    assert (graph.num_vertices, graph.num_edges) == (19_717, 88_726)
    assert (graph.num_features, graph.num_classes, graph.name) == (500, 3, "demo")
    assert {name: int(mask.sum()) for name, mask in graph.splits.items()} == {"train": 60, "val": 500, "test": 1000}

"""Generated graphs: R-MAT and the block model."""

import time

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sagann.errors import InputError
from sagann.graph import Graph, add_self_loops, normalise
from sagann.graph.random_numbers import key_of
from sagann.graph.rmat import Quadrants, permute, rmat_edges, rmat_graph
from sagann.graph.rows import csr_tensor
from sagann.graph.sbm import demo_graph, sbm_graph
from sagann.graph.transform import coalesce, remove_self_loops, symmetrise
from sagann.graph.validate import validate_graph
from tests.graph.graphs import edges_of


def test_threads_do_not_matter_and_the_seed_does():
    first = rmat_edges(1000, 5000, seed=0)
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        single = rmat_edges(1000, 5000, seed=0)
    finally:
        numba.set_num_threads(threads)
    assert torch.equal(torch.stack(first), torch.stack(single))
    assert not torch.equal(torch.stack(first), torch.stack(rmat_edges(1000, 5000, seed=1)))


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


def test_the_seed_decides_and_threads_do_not():
    first = make()
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        single = make()
    finally:
        numba.set_num_threads(threads)
    for other in (single, make()):
        assert torch.equal(other.topology.indices, first.topology.indices)
        assert torch.equal(other.features, first.features)
        assert torch.equal(other.labels, first.labels)
    assert not torch.equal(make(seed=4).labels, first.labels)


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


def test_the_demo_looks_like_pubmed_and_takes_less_than_a_second():
    demo_graph()
    threads = numba.get_num_threads(), torch.get_num_threads()
    try:
        # The processor time of a single thread: other work on the machine does not count.
        numba.set_num_threads(1)
        torch.set_num_threads(1)
        start = time.thread_time()
        graph = demo_graph()
        assert time.thread_time() - start < 1
    finally:
        numba.set_num_threads(threads[0])
        torch.set_num_threads(threads[1])
    validate_graph(graph)
    assert (graph.num_vertices, graph.num_edges) == (19_717, 88_726)
    assert (graph.num_features, graph.num_classes, graph.name) == (500, 3, "demo")
    assert {name: int(mask.sum()) for name, mask in graph.splits.items()} == {"train": 60, "val": 500, "test": 1000}


@pytest.mark.slow
@pytest.mark.thorough
def test_a_gcn_clearly_beats_the_same_network_without_edges():
    graph = demo_graph()
    with_edges = normalise(add_self_loops(graph), "symmetric").topology
    matrix = csr_tensor(
        with_edges.indptr, with_edges.indices.long(), with_edges.edge_data["weight"], num_columns=graph.num_vertices
    )
    gcn = sum(accuracy_of(graph, lambda x: matrix @ x, seed) for seed in range(2)) / 2
    mlp = sum(accuracy_of(graph, lambda x: x, seed) for seed in range(2)) / 2
    assert 0.77 < gcn < 0.87
    assert 0.62 < mlp < 0.73
    assert gcn > mlp + 0.08


def accuracy_of(graph: Graph, propagate, seed: int) -> float:
    """Test accuracy at the best validation accuracy of two layers of 16 units in plain PyTorch."""
    torch.manual_seed(seed)
    first, second = torch.nn.Linear(graph.num_features, 16), torch.nn.Linear(16, graph.num_classes)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.02, weight_decay=5e-4)
    best = (0.0, 0.0)
    for epoch in range(60):
        hidden = F.dropout(torch.relu(propagate(first(graph.features))), 0.5)
        scores = propagate(second(hidden))
        train = graph.splits["train"]
        optimizer.zero_grad()
        F.cross_entropy(scores[train], graph.labels[train]).backward()
        optimizer.step()
        if epoch % 5 == 4:
            with torch.no_grad():
                right = propagate(second(torch.relu(propagate(first(graph.features))))).argmax(1) == graph.labels
            val, test = (float(right[graph.splits[name]].float().mean()) for name in ("val", "test"))
            best = (val, test) if val > best[0] else best
    return best[1]

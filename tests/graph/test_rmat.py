import numba
import numpy as np
import pytest
import torch

from sagann.errors import InputError
from sagann.graph.random_numbers import key_of
from sagann.graph.rmat import Quadrants, permute, rmat_chunks, rmat_edges, rmat_graph
from sagann.graph.validate import validate_graph


@pytest.mark.parametrize("chunk_edges", [17, 5000])
def test_chunks_join_to_the_whole_graph(chunk_edges):
    src, dst = rmat_edges(100, 200, seed=4)
    chunks = list(rmat_chunks(100, 200, seed=4, chunk_edges=chunk_edges))
    assert torch.equal(torch.cat([chunk[0] for chunk in chunks]), src)
    assert torch.equal(torch.cat([chunk[1] for chunk in chunks]), dst)


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
        (
            lambda: rmat_edges(5, 5, seed=0, first=3, count=3),
            "edge range outside the graph: 3 edges from 3, but there are 5 (in rmat_edges). "
            "Ask for a range within 0 to num_edges.",
        ),
        (
            lambda: Quadrants(a=0.9),
            "quadrant probabilities do not add up: 0.9, 0.19, 0.19, 0.05, expected each at least 0, and a sum of 1 "
            "(in Quadrants). Scale them so that they add up to 1.",
        ),
    ],
)
def test_impossible_graphs_are_refused(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == message

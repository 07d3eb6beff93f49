"""Graphs with other edges, weights or features, and subgraphs."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.graph.renumber import original_order, relabel, subgraph
from sagann.graph.transform import (
    add_inverse_edges,
    add_self_loops,
    coalesce,
    normalise,
    normalise_features,
    remove_self_loops,
    symmetrise,
)
from tests.graph.graphs import edges_of, graphs, make_graph, sparse


def check_unchanged_vertices(before: Graph, after: Graph):
    assert after.features is before.features
    assert after.labels is before.labels
    assert after.splits == before.splits
    after.topology.validate()


def test_add_self_loops_keeps_loops_and_puts_new_ones_where_their_sources_belong():
    graph = make_graph([(1, 0), (2, 2), (0, 2)], 4, weight=torch.tensor([0.5, 7.0, 2.0]))
    looped = add_self_loops(graph)
    assert edges_of(looped, "weight") == [(0, 0, 1), (1, 0, 0.5), (1, 1, 1), (0, 2, 2), (2, 2, 7), (3, 3, 1)]
    assert looped.topology.edge_data["weight"].dtype == torch.float32
    twice = edges_of(add_self_loops(graph, doubles=True), "weight")
    assert twice == [(0, 0, 1), (1, 0, 0.5), (1, 1, 1), (0, 2, 2), (2, 2, 1), (2, 2, 7), (3, 3, 1)]


@given(graphs())
def test_add_self_loops_adds_only_missing_ones(graph):
    looped = add_self_loops(graph, fill={"number": -1})
    check_unchanged_vertices(graph, looped)
    edges = edges_of(looped, "number")
    assert [e[:2] for e in edges] == sorted((e[:2] for e in edges), key=lambda e: (e[1], e[0]))
    assert [e for e in edges if e[2] != -1] == edges_of(graph, "number")
    added = [e[0] for e in edges if e[2] == -1]
    assert all(e[0] == e[1] for e in edges if e[2] == -1)
    had = {s for s, d in edges_of(graph) if s == d}
    assert sorted(added) == sorted(set(range(graph.num_vertices)) - had)
    assert add_self_loops(looped, fill={"number": -1}) is looped


def test_new_self_loops_get_a_type_of_their_own():
    graph = make_graph([(0, 1), (1, 1)], 2, type=torch.tensor([1, 0], dtype=torch.uint8))
    looped = add_self_loops(graph)
    assert edges_of(looped, "type") == [(0, 0, 2), (0, 1, 1), (1, 1, 0)]
    assert looped.num_edge_types == 3
    assert add_self_loops(graph, fill={"type": 0}).num_edge_types == 2


def test_edge_data_without_a_value_for_new_loops_may_be_left_out():
    graph = make_graph([(0, 1)], 2, year=torch.tensor([1999]), weight=torch.tensor([0.5]))
    looped = add_self_loops(graph, leave_out=True)
    assert list(looped.topology.edge_data) == ["weight"]
    assert edges_of(looped, "weight") == [(0, 0, 1), (0, 1, 0.5), (1, 1, 1)]
    whole = add_self_loops(graph, fill={"year": 0})
    assert add_self_loops(whole, leave_out=True) is whole


def test_add_self_loops_refuses_edge_data_it_cannot_invent():
    graph = make_graph([(0, 1)], 2, year=torch.tensor([1999]))
    with pytest.raises(
        InputError, match=r"2 vertices without a self-loop \(in edge data 'year'.*fill=\{'year': 0\}"
    ):
        add_self_loops(graph)


def test_a_type_that_does_not_fit_is_widened():
    graph = make_graph([(0, 1)], 2, type=torch.tensor([255], dtype=torch.uint8))
    assert edges_of(add_self_loops(graph), "type") == [(0, 0, 256), (0, 1, 255), (1, 1, 256)]


@given(graphs())
def test_remove_self_loops_keeps_the_rest_in_order(graph):
    rest = remove_self_loops(graph)
    check_unchanged_vertices(graph, rest)
    assert edges_of(rest, "number") == [e for e in edges_of(graph, "number") if e[0] != e[1]]


@given(graphs(typed=False, weighted=True))
def test_coalesce_equals_scipy(graph):
    merged = coalesce(graph)
    check_unchanged_vertices(graph, merged)
    n = graph.num_vertices
    topology = graph.topology
    matrix = sp.coo_matrix(
        (topology.edge_data["weight"].double(), (topology.edge_dst(), topology.indices)), shape=(n, n)
    ).tocsr()
    matrix.sort_indices()
    np.testing.assert_array_equal(merged.topology.indptr, matrix.indptr)
    np.testing.assert_array_equal(merged.topology.indices, matrix.indices)
    np.testing.assert_array_equal(merged.topology.edge_data["weight"], matrix.data)


@given(graphs(typed=True, weighted=True))
def test_coalesce_keeps_types_apart_and_the_first_of_other_data(graph):
    merged = coalesce(graph)
    expected = {}
    for src, dst, kind, weight, number in edges_of(graph, "type", "weight", "number"):
        before, first = expected.get((dst, src, kind), (0, number))
        expected[dst, src, kind] = (before + weight, first)
    got = [((d, s, t), (w, x)) for s, d, t, w, x in edges_of(merged, "type", "weight", "number")]
    assert got == sorted(expected.items())


@given(graphs(weighted=True, typed=True))
def test_symmetrise_mirrors_missing_edges_only(graph):
    both = symmetrise(graph)
    edges = {(s, d, t): (w, x) for s, d, t, w, x in edges_of(coalesce(graph), "type", "weight", "number")}
    for (s, d, t), data in list(edges.items()):
        edges.setdefault((d, s, t), data)
    got = {(s, d, t): (w, x) for s, d, t, w, x in edges_of(both, "type", "weight", "number")}
    assert got == edges
    assert both.num_edges == len(edges)


@given(graphs(typed=True))
def test_inverse_edges_have_types_of_their_own(graph):
    both = add_inverse_edges(graph)
    check_unchanged_vertices(graph, both)
    count = graph.num_edge_types
    forward = edges_of(graph, "type", "number")
    expected = forward + [(d, s, t + count, x) for s, d, t, x in forward]
    assert sorted(edges_of(both, "type", "number")) == sorted(expected)
    assert both.num_edge_types == 2 * count


def test_inverse_edges_of_an_untyped_graph_are_refused():
    with pytest.raises(InputError, match=r"need edge types: num_edge_types 0 .*Use symmetrise"):
        add_inverse_edges(make_graph([(0, 1)], 2))


# PyG compiles parts of itself as TorchScript when it is imported, and torch warns of that.
pyg = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pyg
@pytest.mark.peers
@given(graphs(typed=False))
def test_symmetric_equals_pyg_gcn_norm(graph):
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    graph = add_self_loops(graph, fill={"number": 0})
    topology = graph.topology
    edge_index = torch.stack([topology.indices.long(), topology.edge_dst().long()])
    weight = topology.edge_data.get("weight")
    expected = gcn_norm(
        edge_index,
        None if weight is None else weight.double(),
        graph.num_vertices,
        add_self_loops=False,
        dtype=torch.float64,
    )[1]
    got = normalise(graph, "symmetric", dtype=torch.float64).topology.edge_data["weight"]
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=0)
    single = normalise(graph, "symmetric").topology.edge_data["weight"]
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, expected.float(), rtol=1e-6, atol=0)


@given(graphs())
def test_row_weights_sum_to_one(graph):
    topology = normalise(graph, "row", dtype=torch.float64).topology
    sums = torch.zeros(graph.num_vertices, dtype=torch.float64)
    sums.index_add_(0, topology.edge_dst(), topology.edge_data["weight"])
    torch.testing.assert_close(sums, (topology.in_degrees() > 0).double())


def test_a_source_without_in_edges_gives_zero_and_no_infinity():
    graph = make_graph([(0, 1), (1, 2)], 4)
    assert edges_of(normalise(graph, "symmetric"), "weight") == [(0, 1, 0.0), (1, 2, 1.0)]
    assert edges_of(normalise(graph, "row"), "weight") == [(0, 1, 1.0), (1, 2, 1.0)]


def test_weights_that_cancel_give_zero():
    graph = make_graph([(0, 1), (1, 1)], 2, weight=torch.tensor([1.0, -1.0]))
    assert edges_of(normalise(graph, "row"), "weight") == [(0, 1, 0.0), (1, 1, 0.0)]


def test_a_negative_degree_is_refused():
    graph = make_graph([(0, 1), (1, 0)], 2, weight=torch.tensor([1.0, -2.5]))
    with pytest.raises(InputError, match=r"weights into vertex 0 sum to -2\.5, at least 0 is needed .*Use 'row'"):
        normalise(graph, "symmetric")
    with pytest.raises(InputError, match="unknown normalisation: 'column', expected one of symmetric, row"):
        normalise(graph, "column")


def graph_with(features: Tensor | None, num_vertices: int | None = None) -> Graph:
    n = len(features) if features is not None else num_vertices or 1
    topology = Topology(indptr=torch.zeros(n + 1, dtype=torch.int64), indices=torch.zeros(0).int(), num_src=n)
    return Graph(topology=topology, features=features)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_csr])
def test_rows_sum_to_one_and_zero_rows_stay_zero(dtype: torch.dtype, layout: torch.layout) -> None:
    features = torch.tensor([[1, 0, 3], [0, 0, 0], [0.5, 0, 0], [1, 1, 2]], dtype=dtype)
    expected = torch.tensor([[0.25, 0, 0.75], [0, 0, 0], [1, 0, 0], [0.25, 0.25, 0.5]], dtype=dtype)
    found = normalise_features(graph_with(features if layout == torch.strided else sparse(features))).features
    assert found.dtype == dtype
    assert found.layout == layout
    assert torch.equal(found.to_dense(), expected)


@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    )
)
def test_magnitudes_sum_to_one_whatever_the_signs(rows: list[list[float]]) -> None:
    features = torch.tensor(rows, dtype=torch.float64)
    dense = normalise_features(graph_with(features)).features
    csr = normalise_features(graph_with(sparse(features))).features
    sums = dense.abs().sum(dim=1)
    wanted = (features.abs().sum(dim=1) > 0).double()
    torch.testing.assert_close(sums, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(csr.to_dense(), dense, rtol=1e-12, atol=0)
    assert torch.equal(dense.sign(), features.sign())


def test_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.rand(17, 5, generator=torch.Generator().manual_seed(1))
    whole = normalise_features(graph_with(features)).features
    monkeypatch.setattr("sagann.graph.checks.CHECKED_AT_ONCE", 12)
    sliced = normalise_features(graph_with(features)).features
    assert torch.equal(whole, sliced)


def test_without_features_is_refused() -> None:
    with pytest.raises(InputError, match=r"no features to normalise: features are None \(in graph 'graph'\)"):
        normalise_features(graph_with(None, 3))


@given(graphs(), st.data())
def test_subgraph_is_induced_and_keeps_the_order_given_of_vertices(graph, data):
    n = graph.num_vertices
    graph = replace(graph, targets=torch.arange(2.0 * n).reshape(n, 2))
    vertices = data.draw(st.lists(st.integers(0, n - 1), unique=True)) if n else []
    part = subgraph(graph, torch.tensor(vertices, dtype=torch.int64))
    part.topology.validate()
    new = {v: i for i, v in enumerate(vertices)}
    inside = [(new[s], new[d], x) for s, d, x in edges_of(graph, "number") if s in new and d in new]
    # In-edges ascend by their sources' new numbers; multi-edges keep their order.
    assert edges_of(part, "number") == sorted(inside, key=lambda edge: (edge[1], edge[0]))
    assert part.features.tolist() == [graph.features[v].tolist() for v in vertices]
    assert part.labels.tolist() == [graph.labels[v] for v in vertices]
    assert part.targets.tolist() == [graph.targets[v].tolist() for v in vertices]
    assert part.splits["train"].tolist() == [bool(graph.splits["train"][v]) for v in vertices]


@given(graphs(), st.randoms())
def test_relabel_there_and_back_changes_nothing(graph, random):
    order = list(range(graph.num_vertices))
    random.shuffle(order)
    order = torch.tensor(order, dtype=torch.int64)
    back = relabel(relabel(graph, order), order.argsort())
    assert edges_of(back, "number") == edges_of(graph, "number")
    assert torch.equal(back.features, graph.features)
    assert torch.equal(back.labels, graph.labels)
    assert torch.equal(back.original_ids, torch.arange(graph.num_vertices))


def test_original_ids_survive_every_renumbering():
    graph = make_graph([(0, 1), (1, 2)], 5)
    first, second = torch.tensor([3, 1, 4, 0, 2]), torch.tensor([2, 0, 4, 3, 1])
    once = relabel(graph, first)
    twice = relabel(once, second)
    assert once.original_ids.tolist() == first.tolist()
    assert twice.original_ids.tolist() == [4, 3, 2, 0, 1]
    assert edges_of(relabel(twice, original_order(twice))) == edges_of(graph)
    assert original_order(graph).tolist() == [0, 1, 2, 3, 4]
    assert subgraph(twice, torch.tensor([0, 1])).original_ids is None


def test_sparse_features_and_multi_labels_follow_their_vertices():
    dense = torch.tensor([[0.0, 1.0], [0.0, 0.0], [2.0, 3.0]])
    graph = Graph(
        topology=make_graph([(0, 2)], 3).topology,
        features=sparse(dense),
        labels=torch.eye(3, dtype=torch.uint8),
        num_classes=3,
    )
    part = subgraph(graph, torch.tensor([2, 1]))
    assert part.features.layout == torch.sparse_csr
    assert part.features.to_dense().tolist() == [[2.0, 3.0], [0.0, 0.0]]
    assert part.labels.tolist() == [[0, 0, 1], [0, 1, 0]]


def two_graphs():
    return Graph(
        topology=make_graph([(0, 1), (2, 3), (4, 2)], 5).topology,
        graph_ptr=torch.tensor([0, 2, 2, 5]),
        graph_names=("a", "none", "b"),
    )


def test_graphs_keep_their_answers():
    graph = replace(
        two_graphs(),
        graph_labels=torch.tensor([0, 1, 2]),
        num_graph_classes=3,
        graph_targets=torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        graph_splits={"train": torch.tensor([True, False, False])},
    )
    for part in (subgraph(graph, torch.tensor([4, 2, 1])), relabel(graph, torch.tensor([4, 2, 3, 1, 0]))):
        assert part.graph_labels.tolist() == [2, 0]
        assert part.graph_targets.tolist() == [[5.0, 6.0], [1.0, 2.0]]
        assert part.graph_splits["train"].tolist() == [False, True]
        assert part.num_graph_classes == 3
        assert part.graph_names == ("b", "a")
    part = subgraph(graph, torch.tensor([4, 2, 1]))
    assert (part.graph_ptr.tolist(), edges_of(part)) == ([0, 2, 3], [(0, 1)])


def test_mixed_graphs_are_refused():
    with pytest.raises(InputError, match=r"mixed: the vertices of graph 2 are in 2 places .*or drop graph_ptr"):
        subgraph(two_graphs(), torch.tensor([4, 1, 2]))


@pytest.mark.parametrize(
    ("vertices", "message"),
    [
        (torch.tensor([0.0]), r"float32 \[1\], expected torch.int64 \[n\] \(in vertices of graph 'graph'\)"),
        (torch.tensor([1, 5]), r"vertex id out of range: 5, but there are 3 vertices, .*'graph', position 1\)"),
        (torch.tensor([2, 0, 2]), r"vertex repeated: 2 stands more than once .*ids.unique\(\)"),
    ],
)
def test_bad_vertices_are_refused(vertices, message):
    with pytest.raises(InputError, match=message):
        subgraph(make_graph([(0, 1)], 3), vertices)


def test_an_order_that_is_no_permutation_is_refused():
    with pytest.raises(InputError, match=r"not a permutation: 2 ids, 3 vertices \(in order of graph 'graph'\)"):
        relabel(make_graph([(0, 1)], 3), torch.tensor([0, 1]))

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.graph.transform import add_inverse_edges, add_self_loops, coalesce, remove_self_loops, symmetrise
from tests.graph.graphs import edges_of, graphs, make_graph


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
    with pytest.raises(InputError) as error:
        add_self_loops(graph)
    assert str(error.value) == (
        "edge data has no value for new self-loops: 2 vertices without a self-loop (in edge data 'year' of graph "
        "'graph'). Pass a value, fill={'year': 0}, or drop the edge data, leave_out=True."
    )


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
    with pytest.raises(InputError) as error:
        add_inverse_edges(make_graph([(0, 1)], 2))
    assert str(error.value) == (
        "inverse edges need edge types: num_edge_types 0 (in graph 'graph'). "
        "Use symmetrise for a graph without edge types."
    )

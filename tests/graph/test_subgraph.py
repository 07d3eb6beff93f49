from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.graph.renumber import original_order, relabel, subgraph
from tests.graph.graphs import edges_of, graphs, make_graph, sparse


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

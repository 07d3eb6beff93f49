"""Feature stores: the rows of tensors, and of stores that users write; constant where their owner says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.errors import InputError
from sagann.graph import (
    Graph,
    Topology,
    declare_constant,
    normalise_features,
    relabel,
    subgraph,
    validate_graph,
)
from sagann.graph.feature_store import (
    Features,
    FeatureStore,
    SparseRows,
    TensorRows,
    feature_store,
    is_constant,
    read_rows,
    read_slice,
    tensor_of,
)
from tests.graph.graphs import sparse
from tests.stores import ComputedRows


def graph_of(features: Features) -> Graph:
    topology = Topology.from_coo(src=torch.tensor([0, 1, 3]), dst=torch.tensor([1, 2, 0]), num_src=4)
    return Graph(topology=topology, features=features)


MATRIX = sparse(torch.tensor([[0.0, 0, 1], [0, 0, 0], [2, 3, 0], [0, 0, 4]]))


def test_every_store_gives_the_rows_of_its_tensor() -> None:
    computed = ComputedRows(4, 3)
    strided = torch.arange(24.0).reshape(4, 6)[:, ::2]
    for features, whole in (
        (strided, strided),
        (torch.arange(4), torch.arange(4)),
        (MATRIX, MATRIX.to_dense()),
        (computed, computed.slice(0, 4)),
    ):
        store = feature_store(features)
        assert isinstance(store, FeatureStore)
        assert (store.num_rows, store.row_shape, store.dtype) == (4, tuple(whole.shape[1:]), whole.dtype)
        for start, stop in ((0, 4), (1, 3), (2, 2)):
            rows = store.slice(start, stop)
            assert (rows.to_dense() if rows.layout == torch.sparse_csr else rows).equal(whole[start:stop])
        ids = torch.tensor([3, 0, 3])
        rows = store.rows(ids)
        assert (rows.to_dense() if rows.layout == torch.sparse_csr else rows).equal(whole[ids])
    assert feature_store(computed) is computed


def test_a_tensor_is_read_where_it_lies_and_a_store_is_read_once() -> None:
    tensor = torch.randn(4, 3)
    assert tensor_of(tensor) is tensor
    assert TensorRows(tensor).slice(1, 3).data_ptr() == tensor[1:].data_ptr()
    computed = ComputedRows(4, 3)
    graph = graph_of(computed)
    assert graph.features is computed
    assert graph.to("cpu").features is computed
    in_memory = graph.in_memory()
    assert torch.equal(tensor_of(in_memory.features), computed.slice(0, 4))
    assert in_memory.in_memory().features is in_memory.features
    # The stores of tensors are these tensors.
    assert graph_of(TensorRows(tensor)).features is tensor
    assert graph_of(SparseRows(MATRIX)).features is MATRIX


def test_a_graph_takes_a_store_for_its_features() -> None:
    computed = ComputedRows(4, 3)
    graph = graph_of(computed)
    assert repr(graph) == "Graph(num_vertices=4, num_edges=3, num_features=3, num_classes=0)"
    assert is_constant(computed)
    validate_graph(graph)
    whole = computed.slice(0, 4)
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(relabel(graph, order).features, whole[order])
    assert torch.equal(subgraph(graph, order[:2]).features, whole[order[:2]])
    expected = normalise_features(replace(graph, features=whole)).features
    assert torch.equal(normalise_features(graph).features, expected)


def test_stores_with_bad_rows_are_refused() -> None:
    with pytest.raises(InputError, match="features and vertices differ in number: 5 rows, 4 vertices"):
        graph_of(ComputedRows(5, 3))
    bad = ComputedRows(4, 3)
    bad.scale = float("inf")
    with pytest.raises(InputError, match=r"feature is not finite: nan in column 0 .*vertex 0"):
        validate_graph(graph_of(bad))
    bad.width = 2
    for read in (lambda: read_slice(bad, 0, 3), lambda: read_rows(bad, torch.arange(3)), lambda: tensor_of(bad)):
        with pytest.raises(InputError, match=r"gives other rows than it states: torch.float32 \[\d, 3\], expected"):
            read()


def test_a_graph_declares_its_features() -> None:
    features = torch.ones(4, 2)
    assert not is_constant(features)
    graph = graph_of(features)
    assert is_constant(features)
    other = sparse(torch.eye(4, 3))
    replace(graph, features=other)
    assert is_constant(other)


def test_what_is_computed_of_them_is_not_constant() -> None:
    features = graph_of(torch.ones(4, 2)).features
    assert not is_constant(torch.dropout(features, 0.5, True))
    assert not is_constant(features[:2])


def test_features_that_learn_are_not_constant() -> None:
    features = torch.ones(4, 2, requires_grad=True)
    graph_of(features)
    assert not is_constant(features)
    assert not is_constant(declare_constant(torch.ones(2)).requires_grad_())

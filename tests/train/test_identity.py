from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.errors import CheckpointError
from sagann.graph import Graph
from sagann.storage import array_checksums, open_graph, save_graph
from sagann.train import identity
from sagann.train.identity import check_same, graph_identity
from tests.train.runs import community_graph


def changed_graphs():
    graph = community_graph()
    labels = graph.labels.clone()
    labels[5] = 0
    splits = {**graph.splits, "test": torch.zeros(90, dtype=torch.bool)}
    yield "labels", replace(graph, labels=labels)
    yield "split_test", replace(graph, splits=splits)
    yield "features", replace(graph, features=graph.features.double())
    weighted = graph.topology.with_edge_data(weight=torch.ones(540))
    yield "edge data 'weight'", graph.with_topology(weighted)
    yield "indices", graph.with_topology(type(graph.topology)(
        indptr=graph.topology.indptr, indices=graph.topology.indices.roll(1), num_src=90
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "graph"), list(changed_graphs()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_changed_array_is_the_first_difference(name, graph):
    with pytest.raises(CheckpointError) as caught:
        check_same(graph_identity(community_graph()), graph_identity(graph), where="run")
    assert f": {name}" in caught.value.message


def test_the_same_graph_built_twice_is_the_same():
    assert graph_identity(community_graph()) == graph_identity(community_graph())


def test_sparse_features_and_absent_ones(recwarn):
    graph = community_graph()
    sparse = replace(graph, features=graph.features.relu().to_sparse_csr())
    assert "features.values" in graph_identity(sparse)
    assert "features" not in graph_identity(Graph(topology=graph.topology))


def test_pieces_do_not_change_the_digest(monkeypatch):
    whole = graph_identity(community_graph())
    monkeypatch.setattr(array_checksums, "_AT_ONCE_BYTES", 100)
    assert graph_identity(community_graph()) == whole


def test_an_empty_array_has_a_digest():
    assert identity._digest(torch.zeros(0, dtype=torch.int32)) != identity._digest(torch.zeros(0, 3))


@pytest.mark.parametrize("form", ["dense", "half", "sparse", "none"])
def test_a_graph_is_the_same_in_memory_and_in_a_dataset(tmp_path, form):
    graph = community_graph()
    features = {"half": graph.features.bfloat16(), "sparse": graph.features.relu().to_sparse_csr(), "none": None}
    graph = replace(graph, features=features.get(form, graph.features))
    save_graph(graph, tmp_path / "g")
    assert graph_identity(open_graph(tmp_path / "g")) == graph_identity(graph)

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.errors import CheckpointError
from sagann.storage import open_graph, save_graph
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


@pytest.mark.parametrize("form", ["dense", "half", "sparse", "none"])
def test_a_graph_is_the_same_in_memory_and_in_a_dataset(tmp_path, form):
    graph = community_graph()
    features = {"half": graph.features.bfloat16(), "sparse": graph.features.relu().to_sparse_csr(), "none": None}
    graph = replace(graph, features=features.get(form, graph.features))
    save_graph(graph, tmp_path / "g")
    assert graph_identity(open_graph(tmp_path / "g")) == graph_identity(graph)

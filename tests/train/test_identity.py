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
    yield "split 'test'", replace(graph, splits=splits)
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
    assert caught.value.value.startswith(name)


def test_a_run_from_before_losses_had_names_had_the_one_of_its_task():
    now = {"lr": 1, "task": "multi-label", "loss": {"name": "bce", "class_weights": []}}
    check_same({"lr": 1}, now, where="run")
    with pytest.raises(CheckpointError, match=r"loss\.name was bce, is \(mine\)"):
        check_same({"lr": 1}, {**now, "loss": {"name": "(mine)", "class_weights": []}}, where="run")


def test_a_run_from_before_a_model_had_a_field_had_its_default():
    later = {"negative_slope": 0.2, "model_options": {}, "pool": "mean", "decoder": "auto"}
    now = {"model": {"class": "GNN", "config": {"hidden": 8, "teleport": 0.1, **later}}}
    check_same({"model": {"class": "GNN", "config": {"hidden": 8}}}, now, where="run")
    with pytest.raises(CheckpointError, match=r"model\.config\.teleport was 0\.1, is 0\.2"):
        check_same(
            {"model": {"class": "GNN", "config": {"hidden": 8}}},
            {"model": {"class": "GNN", "config": {"hidden": 8, "teleport": 0.2, **later}}},
            where="run",
        )


def test_a_run_from_before_model_files_could_import_others_goes_on():
    now = {"model": {"class": "Net", "file": "1", "imports": {"parts.py": "2"}}}
    check_same({"model": {"class": "Net", "file": "1"}}, now, where="run")
    with pytest.raises(CheckpointError, match=r"model\.imports\.parts\.py was 3, is 2"):
        check_same({"model": {"class": "Net", "file": "1", "imports": {"parts.py": "3"}}}, now, where="run")


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

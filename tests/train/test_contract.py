from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.errors import CheckpointError, InputError, LayerError
from sagann.nn import ModelConfig, build_model
from sagann.storage import open_graph, save_graph
from sagann.train import Contract
from sagann.train.contract import require_names
from sagann.train.identity import check_same, graph_difference, graph_identity
from tests.train.runs import CPU, community_graph, predictor_of


def test_a_model_of_edge_features_is_built_from_sizes_alone():
    graph = community_graph()
    graph = graph.with_topology(graph.topology.with_edge_data(attr=torch.ones(540, 5, dtype=torch.int64)))
    config, shapes = ModelConfig(model="gine", hidden=8), Contract.of(graph).shape_only_graph()
    assert Contract.of(shapes) == Contract.of(graph)
    model = build_model(config, graph)
    expected = {name: value.shape for name, value in model.state_dict().items()}
    assert {name: value.shape for name, value in build_model(config, shapes).state_dict().items()} == expected
    prepared = model.prepare(graph)
    assert model(prepared.hops(model.num_hops), prepared.features).shape == (90, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.zeros(90, 5)}, "5 features per vertex, the model expects 8"),
        ({"features": None}, "0 features per vertex, the model expects 8"),
        ({"num_edge_types": 2}, "2 edge types, the model expects 0"),
    ],
)
def test_graphs_that_do_not_fit_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        Contract.of(community_graph()).check(replace(community_graph(), **change))


def test_features_are_known_by_their_names():
    named = replace(community_graph(), feature_names=tuple("abcdefgh"))
    contract = Contract.of(named)
    contract.check(named)
    contract.check(replace(named, feature_names=()))
    Contract.of(community_graph()).check(named)
    swapped = replace(named, feature_names=tuple("bacdefgh"))
    with pytest.raises(
        InputError, match=r"other names .*: feature 0 is 'b', the model expects .a. .*Order the features as a, b, c"
    ):
        contract.check(swapped)
    saved = graph_identity(named)
    assert (graph_difference(saved, swapped), graph_difference(saved, named)) == ("feature_names", None)


def test_a_model_without_features_knows_its_own_vertices_only():
    contract = Contract.of(replace(community_graph(), features=None))
    contract.check(replace(community_graph(), features=None))
    with pytest.raises(InputError, match="30 vertices, the model has weights for 90"):
        contract.check(replace(community_graph(30), features=None))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (replace(community_graph(), labels=None), "the graph has no labels"),
        (replace(community_graph(), num_classes=4), "4 exclusive classes, the model predicts 3 exclusive classes"),
        (community_graph(multi_label=True), "3 multi-label classes, the model predicts 3 exclusive classes"),
    ],
)
def test_labels_that_do_not_fit_are_refused(graph, message):
    with pytest.raises(InputError, match=message):
        Contract.of(community_graph()).check_labels(graph)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (
            torch.zeros(90, 4),
            r"float32 \[90, 4\], expected a dense tensor of .* \[90, 3\] on cpu \(in model TwoLayers\)",
        ),
        (torch.zeros(90, 3, dtype=torch.int64), r"torch.int64 \[90, 3\]"),
        (torch.zeros(90, 3, device="meta"), r"torch.float32 \[90, 3\] on meta"),
        (torch.zeros(90, 3).to_sparse(), r"torch.float32 \[90, 3\] of layout torch.sparse_coo"),
        (None, "a NoneType"),
        ((torch.zeros(90, 3),), "a tuple"),
    ],
)
def test_logits_of_another_form_are_refused(logits, message):
    with pytest.raises(LayerError, match=message):
        predictor_of().head.check(logits, 90, CPU)


def test_a_model_of_edge_types_refuses_a_graph_without():
    typed = Contract.of(replace(community_graph(), num_edge_types=3))
    typed.check(replace(community_graph(), num_edge_types=2))
    with pytest.raises(InputError, match="0 edge types, the model expects 3"):
        typed.check(community_graph())


def test_as_many_names_as_classes():
    assert require_names([1, "b"], 2, where="names") == ("1", "b")
    assert require_names([], 2, where="names") == ()
    with pytest.raises(InputError, match="classes and their names differ in number: 1 names, 2 classes"):
        require_names(["a"], 2, where="names")


def changed_graphs():
    graph = community_graph()
    labels = graph.labels.clone()
    labels[5] = 0
    splits = {**graph.splits, "test": torch.zeros(90, dtype=torch.bool)}
    yield "labels", replace(graph, labels=labels)
    yield "split_test", replace(graph, splits=splits)
    yield "features", replace(graph, features=graph.features.double())
    weighted = graph.topology.with_edge_data(weight=torch.ones(540))
    yield "edge_weight", graph.with_topology(weighted)
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
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_graph_is_the_same_in_memory_and_in_a_dataset(tmp_path, form):
    graph = community_graph()
    features = {"half": graph.features.bfloat16(), "sparse": graph.features.relu().to_sparse_csr(), "none": None}
    graph = replace(graph, features=features.get(form, graph.features))
    save_graph(graph, tmp_path / "g")
    assert graph_identity(open_graph(tmp_path / "g")) == graph_identity(graph)

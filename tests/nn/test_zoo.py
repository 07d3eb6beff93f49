from dataclasses import replace

import pytest
import torch

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.nn import GNN, MODELS, ModelConfig, build_model
from tests.graphs import labelled_graph


def run(config: ModelConfig, graph: Graph) -> torch.Tensor:
    model = build_model(config, graph)
    prepared = model.prepare(graph) if hasattr(model, "prepare") else graph
    return model(prepared.hops(getattr(model, "num_hops", 2)), prepared.features)


@pytest.mark.parametrize(("layers", "norm"), [(1, "layer"), (3, "batch")])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_runs_at_every_depth(model: str, layers: int, norm: str | None) -> None:
    graph = labelled_graph(types=2 if model == "ggnn" else 0)
    out = run(ModelConfig(model=model, layers=layers, hidden=16, norm=norm), graph)
    assert out.shape == (graph.num_vertices, graph.num_classes)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(
    "features", [None, torch.empty(labelled_graph().num_vertices, 0)], ids=["none", "no column"]
)
@pytest.mark.parametrize("model", MODELS)
def test_a_graph_without_features_gets_an_embedding(model: str, features: torch.Tensor | None) -> None:
    graph = replace(labelled_graph(), features=features)
    assert run(ModelConfig(model=model, hidden=16), graph).shape == (graph.num_vertices, 3)


@pytest.mark.parametrize("model", MODELS)
def test_edge_data_that_no_layer_reads_does_no_harm(model: str) -> None:
    graph = labelled_graph(types=2 if model == "ggnn" else 0)
    vectors = torch.rand(graph.num_edges, 3)
    graph = replace(graph, topology=graph.topology.with_edge_data(vector=vectors))
    assert run(ModelConfig(model=model, hidden=16), graph).shape == (graph.num_vertices, 3)


@pytest.mark.usefixtures("kernels")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.parametrize("encoder", ["auto", "linear"])
@pytest.mark.parametrize("model", MODELS)
def test_sparse_features_give_what_dense_ones_give(model: str, encoder: str) -> None:
    graph = labelled_graph()
    config = ModelConfig(model=model, hidden=16, dropout=0.0, encoder=encoder)
    torch.manual_seed(0)
    dense = run(config, graph)
    torch.manual_seed(0)
    sparse = run(config, replace(graph, features=graph.features.to_sparse_csr()))
    torch.testing.assert_close(sparse, dense)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_preparing_a_graph_twice_changes_nothing(model: str, weighted: bool) -> None:
    graph = labelled_graph()
    if not weighted:
        plain = Topology(indptr=graph.topology.indptr, indices=graph.topology.indices, num_src=graph.num_vertices)
        graph = graph.with_topology(plain)
    module = build_model(ModelConfig(model=model, hidden=16), graph)
    once = module.prepare(graph)
    twice = module.prepare(once)
    assert torch.equal(once.topology.indices, twice.topology.indices)
    assert once.topology.edge_data.keys() == twice.topology.edge_data.keys()
    for name, rows in once.topology.edge_data.items():
        assert torch.equal(rows, twice.topology.edge_data[name])


def test_gat_heads_are_concatenated_then_averaged() -> None:
    model = build_model(
        ModelConfig(model="gat", hidden=64, heads=8, model_options={"out_heads": 4}), labelled_graph()
    )
    assert isinstance(model, GNN)
    first, last = model.layers
    assert (first.num_heads, first.head_dim, first.concat) == (8, 8, True)
    assert (last.num_heads, last.head_dim, last.concat) == (4, 3, False)


def test_residual_gcn_learns_a_shortcut_where_widths_differ_or_when_asked() -> None:
    kinds = [
        [type(layer.shortcut).__name__ for layer in build_model(config, labelled_graph()).layers]
        for config in (
            ModelConfig(model="residual-gcn", layers=3, hidden=16),
            ModelConfig(model="residual-gcn", layers=3, hidden=16, model_options={"linear_shortcut": True}),
        )
    ]
    assert kinds == [["Linear", "Identity", "Linear"], ["Linear", "Linear", "Linear"]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "gnc"}, "unknown model: 'gnc', expected one of commnet, gcn,"),
        ({"layers": 0}, "layers is refused: 0, expected an integer from 1 to 1000"),
        ({"dropout": 1.0}, "dropout is refused: 1.0, expected a number from 0 to less than 1"),
        ({"encoder": "magic"}, "encoder is refused: 'magic', expected one of auto"),
        ({"model": "gat", "hidden": 30}, "heads do not divide the width: hidden 30, heads 8"),
        ({"model": "gat", "model_options": {"heads": 2}}, "has an option of its own: 'heads'"),
        ({"model": "gat", "model_options": {"out_heads": "4"}}, "option out_heads of gat is not an integer: '4'"),
        (
            {"model": "gat", "model_options": {"out_hedas": 4}},
            "gat has no such option: 'out_hedas' .* Did you mean 'out_heads'",
        ),
        ({"model": "transformer", "model_options": {"negative_slope": 0.1}}, "transformer has no such option"),
        ({"model": "sgc", "model_options": {"teleport": 0.1}}, "sgc has no such option: .* it takes none"),
        ({"hidden": "wide"}, "hidden is refused: 'wide', expected"),
        ({"model": "SAGEConv"}, "Did you mean 'sage'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModelConfig(**settings)


def test_features_and_encoder_must_fit() -> None:
    graph = labelled_graph()
    with pytest.raises(InputError, match="embedding per vertex leaves the features unused: 8 features"):
        build_model(ModelConfig(encoder="embedding"), graph)
    with pytest.raises(InputError, match="vertices have no features: encoder = 'linear'"):
        build_model(ModelConfig(encoder="linear"), replace(graph, features=None))
    with pytest.raises(InputError, match="no classes to learn"):
        build_model(ModelConfig(), replace(graph, labels=None, num_classes=0))


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("model", ["ggnn", "rgcn"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning", "ignore:.*dense:UserWarning")
def test_models_of_edge_types_train_on_features_with_dropout(model: str, is_sparse: bool) -> None:
    graph = labelled_graph(types=2)
    graph = replace(graph, features=graph.features.to_sparse_csr()) if is_sparse else graph
    module = build_model(ModelConfig(model=model, hidden=16), graph).train()
    prepared = module.prepare(graph)
    module(prepared.hops(module.num_hops), prepared.features).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())

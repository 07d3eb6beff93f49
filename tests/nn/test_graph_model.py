"""GraphModel: rows of vertices, pooled, through a head; and which models give graphs rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sagann.errors import InputError, LayerError
from sagann.nn import GIN, GNN, GraphModel, ModelConfig, build_model, pool
from sagann.nn.on_vertices import pooled_by, reads_graphs
from tests.runtime.loading.many_graphs import many_graphs
from tests.tolerances import assert_close
from tests.train.graphs_of import OwnReadout, rings_and_stars
from tests.train.runs import Plain, TwoLayers


def test_rows_are_pooled_and_mapped() -> None:
    graph = many_graphs()
    torch.manual_seed(0)
    model = GraphModel(GNN([GIN(6, 8), GIN(8, 5)]), 5, 3, pool=("sum", "std"), dropout=0.5).eval()
    rows = model.gnn(graph.hops(2), graph.features)
    first, _, _, last = model.head
    expected = last(first(pool(rows, graph.graph_ptr, ("sum", "std"))).relu())
    assert_close(model(graph.hops(model.num_hops), graph.features, graph.graph_ptr), expected)
    assert (model.num_hops, first.in_features, last.out_features) == (2, 10, 3)


def test_the_models_own_preparation_and_features_are_taken() -> None:
    graph = rings_and_stars()
    of_zoo = build_model(ModelConfig(model="gcn", hidden=8), graph)
    assert isinstance(of_zoo, GraphModel)
    assert of_zoo.takes_sparse_features
    assert "gcn_weight" in of_zoo.prepare(graph).topology.edge_data
    plain = GraphModel(Plain(8, 4), 4, 2)
    assert plain.prepare(graph) is graph
    assert not plain.takes_sparse_features
    assert plain.num_hops == 0


def test_a_model_gives_graphs_rows_if_its_forward_takes_their_offsets() -> None:
    assert [
        reads_graphs(model) for model in (OwnReadout, OwnReadout(), GraphModel(Plain(8, 4), 4, 2), TwoLayers)
    ] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("text", "how"), [("mean", "mean"), ("sum, max", ("sum", "max"))])
def test_pooling_is_named_by_accumulators(text: str, how: str | tuple[str, ...]) -> None:
    assert pooled_by(text, where="here") == how


@pytest.mark.parametrize("forward", [torch.relu, "no function"])
def test_a_forward_of_unknown_parameters_gives_vertices_rows(forward: object) -> None:
    assert not reads_graphs(type("Own", (nn.Module,), {"forward": forward}))


@pytest.mark.parametrize("text", ["median", "", "mean,,max", "softmax", "concat", "mean,softmax"])
def test_what_does_not_pool_is_refused(text: str) -> None:
    with pytest.raises((LayerError, InputError), match=r"in here\)"):
        pooled_by(text, where="here")
    with pytest.raises((LayerError, InputError), match=r"ModelConfig\.pool"):
        ModelConfig(pool=text)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match=r"GraphModel\.gnn"):
        GraphModel("gin", 8, 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ModelConfig\.pool"):
        ModelConfig(pool=3)  # type: ignore[arg-type]


def test_gradients_reach_every_parameter() -> None:
    graph = rings_and_stars()
    model = build_model(ModelConfig(model="gin", hidden=8, pool="mean,min"), graph)
    model(graph.hops(2), graph.features, graph.graph_ptr).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert isinstance(model, nn.Module)

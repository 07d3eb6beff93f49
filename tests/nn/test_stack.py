from __future__ import annotations

import pytest
import torch

from sagann.errors import InputError
from sagann.nn import GAT, GCN, GNN, SAGE, EmbeddingEncoder, LinearEncoder
from tests.graphs import labelled_graph
from tests.tolerances import assert_close


def test_a_stack_is_its_layers_with_activations_between() -> None:
    graph = labelled_graph()
    first, second = SAGE(8, 5), SAGE(5, 3)
    norm = torch.nn.LayerNorm(5)
    model = GNN([first, second], norms=[norm])
    hidden = torch.relu(norm(first(graph.topology, graph.features)))
    assert_close(model(graph.hops(2), graph.features), second(graph.topology, hidden))


def test_steps_walk_the_same_layer_again() -> None:
    graph = labelled_graph()
    layer = SAGE(8, 8)
    model = GNN([layer], steps=3, activation=None)
    x = graph.features
    for _ in range(3):
        x = layer(graph.topology, x)
    assert model.num_hops == 3
    assert_close(model(graph.hops(3), graph.features), x)


def test_dropout_acts_in_training_only() -> None:
    graph = labelled_graph()
    model = GNN([SAGE(8, 3)], dropout=0.9)
    assert not torch.equal(model(graph.hops(1), graph.features), model(graph.hops(1), graph.features))
    model.eval()
    assert torch.equal(model(graph.hops(1), graph.features), model(graph.hops(1), graph.features))


def test_hops_and_layers_must_agree() -> None:
    graph = labelled_graph()
    with pytest.raises(InputError, match=r"hops and layers differ in number: 1 hops, 2 layers"):
        GNN([SAGE(8, 5), SAGE(5, 3)])(graph.hops(1), graph.features)


def test_a_graph_in_the_place_of_hops_is_refused_with_the_remedy() -> None:
    graph = labelled_graph()
    with pytest.raises(InputError, match=r"a Graph, expected Sequence \(in GNN.forward\). Pass graph.hops"):
        GNN([SAGE(graph.num_features, 3)])(graph, graph.features)


def test_missing_features_are_refused_with_the_remedy() -> None:
    graph = labelled_graph()
    with pytest.raises(InputError, match=r"features are None .*\(encoder = 'embedding'\)"):
        GNN([SAGE(8, 3)])(graph.hops(1), None)


def test_layers_that_prepare_differently_are_refused() -> None:
    with pytest.raises(InputError, match="prepared in different ways: GAT, GCN"):
        GNN([GCN(8, 8), GAT(8, 3)]).prepare(labelled_graph())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_a_linear_encoder_of_sparse_rows_equals_the_dense_one() -> None:
    x = torch.relu(torch.randn(20, 30, dtype=torch.float64) - 1)
    x[3] = 0
    encoder = LinearEncoder(30, 4).double()
    dense, sparse = encoder(x), encoder(x.to_sparse_csr())
    assert_close(sparse, dense)
    upstream = torch.randn_like(dense)
    parameters = list(encoder.parameters())
    for mine, other in zip(
        torch.autograd.grad(sparse, parameters, upstream),
        torch.autograd.grad(dense, parameters, upstream),
        strict=True,
    ):
        assert_close(mine, other)


def test_an_embedding_takes_no_features() -> None:
    encoder = EmbeddingEncoder(5, 2)
    assert encoder(None) is encoder(torch.ones(5, 0)) is encoder.rows
    with pytest.raises(InputError, match="takes no features"):
        encoder(torch.ones(5, 2))

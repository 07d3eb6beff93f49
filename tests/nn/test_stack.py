"""Stacks of layers, and models of graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sagann import nn as zoo
from sagann.errors import InputError, LayerError
from sagann.graph.rows import offsets_of
from sagann.nn.on_vertices import pooled_by, reads_graphs
from sagann.saga.layer import count_hops
from tests.graphs import labelled_graph
from tests.runtime.cuts import EMPTY, OF_ROWS
from tests.runtime.loading.many_graphs import many_graphs
from tests.tolerances import assert_close, assert_same_gradients
from tests.train.graphs_of import OwnReadout, rings_and_stars
from tests.train.runs import Plain, TwoLayers


def test_a_stack_is_its_layers_with_activations_between() -> None:
    graph = labelled_graph()
    first, second = zoo.SAGE(8, 5), zoo.SAGE(5, 3)
    norm = torch.nn.LayerNorm(5)
    model = zoo.GNN([first, second], norms=[norm])
    hidden = torch.relu(norm(first(graph.topology, graph.features)))
    assert_close(model(graph.hops(2), graph.features), second(graph.topology, hidden))


def test_steps_walk_the_same_layer_again() -> None:
    graph = labelled_graph()
    layer = zoo.SAGE(8, 8)
    model = zoo.GNN([layer], steps=3, activation=None)
    x = graph.features
    for _ in range(3):
        x = layer(graph.topology, x)
    assert model.num_hops == 3
    assert_close(model(graph.hops(3), graph.features), x)


def test_dropout_acts_in_training_only() -> None:
    graph = labelled_graph()
    model = zoo.GNN([zoo.SAGE(8, 3)], dropout=0.9)
    assert not torch.equal(model(graph.hops(1), graph.features), model(graph.hops(1), graph.features))
    model.eval()
    assert torch.equal(model(graph.hops(1), graph.features), model(graph.hops(1), graph.features))


def test_hops_and_layers_must_agree() -> None:
    graph = labelled_graph()
    with pytest.raises(InputError, match=r"hops and layers differ in number: 1 hops, 2 layers"):
        zoo.GNN([zoo.SAGE(8, 5), zoo.SAGE(5, 3)])(graph.hops(1), graph.features)


def test_a_graph_in_the_place_of_hops_is_refused_with_the_remedy() -> None:
    graph = labelled_graph()
    with pytest.raises(InputError, match=r"a Graph, expected Sequence \(in GNN.forward\). Pass graph.hops"):
        zoo.GNN([zoo.SAGE(graph.num_features, 3)])(graph, graph.features)


def test_missing_features_are_refused_with_the_remedy() -> None:
    graph = labelled_graph()
    with pytest.raises(InputError, match=r"features are None .*\(encoder = 'embedding'\)"):
        zoo.GNN([zoo.SAGE(8, 3)])(graph.hops(1), None)


def test_layers_that_prepare_differently_are_refused() -> None:
    with pytest.raises(InputError, match="prepared in different ways: GAT, GCN"):
        zoo.GNN([zoo.GCN(8, 8), zoo.GAT(8, 3)]).prepare(labelled_graph())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_a_linear_encoder_of_sparse_rows_equals_the_dense_one() -> None:
    x = torch.relu(torch.randn(20, 30, dtype=torch.float64) - 1)
    x[3] = 0
    encoder = zoo.LinearEncoder(30, 4).double()
    dense, sparse = encoder(x), encoder(x.to_sparse_csr())
    assert_same_gradients(sparse, dense, list(encoder.parameters()))


def test_an_embedding_takes_no_features() -> None:
    encoder = zoo.EmbeddingEncoder(5, 2)
    assert encoder(None) is encoder(torch.ones(5, 0)) is encoder.rows
    with pytest.raises(InputError, match="takes no features"):
        encoder(torch.ones(5, 2))


def test_rows_are_pooled_and_mapped() -> None:
    graph = many_graphs()
    torch.manual_seed(0)
    model = zoo.GraphModel(zoo.GNN([zoo.GIN(6, 8), zoo.GIN(8, 5)]), 5, 3, pool=("sum", "std"), dropout=0.5).eval()
    rows = model.gnn(graph.hops(2), graph.features)
    first, _, _, last = model.head
    expected = last(first(zoo.pool(rows, graph.graph_ptr, ("sum", "std"))).relu())
    assert_close(model(graph.hops(model.num_hops), graph.features, graph.graph_ptr), expected)
    assert (model.num_hops, first.in_features, last.out_features) == (2, 10, 3)


def test_the_models_own_preparation_and_features_are_taken() -> None:
    graph = rings_and_stars()
    of_zoo = zoo.build_model(zoo.ModelConfig(model="gcn", hidden=8), graph)
    assert isinstance(of_zoo, zoo.GraphModel)
    assert of_zoo.takes_sparse_features
    assert "gcn_weight" in of_zoo.prepare(graph).topology.edge_data
    plain = zoo.GraphModel(Plain(8, 4), 4, 2)
    assert plain.prepare(graph) is graph
    assert not plain.takes_sparse_features
    assert plain.num_hops == 0


def test_a_model_gives_graphs_rows_if_its_forward_takes_their_offsets() -> None:
    models = (OwnReadout, OwnReadout(), zoo.GraphModel(Plain(8, 4), 4, 2), TwoLayers)
    assert [reads_graphs(model) for model in models] == [True, True, True, False]


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
        zoo.ModelConfig(pool=text)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match=r"GraphModel\.gnn"):
        zoo.GraphModel("gin", 8, 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ModelConfig\.pool"):
        zoo.ModelConfig(pool=3)  # type: ignore[arg-type]


SIZES = {
    "some": (3, 1, 5, 2),
    "first empty": (0, 3, 4),
    "last empty": (4, 2, 0),
    "more graphs than vertices": (0, 1, 0, 0, 2, 0),
    "one": (9,),
    "no vertices": (0, 0),
    "no graphs": (),
}


def plain(rows: Tensor, sizes: tuple[int, ...], how: str) -> Tensor:
    """One graph after the other, in PyTorch."""
    empty = torch.full(rows.shape[1:], EMPTY.get(how, 0.0), dtype=rows.dtype)
    pooled = [OF_ROWS[how](part) if len(part) else empty for part in rows.split(list(sizes))]
    return torch.stack(pooled) if pooled else rows.new_empty((0, *rows.shape[1:]))


def rows_of(sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    rows = torch.randn(sum(sizes), 5, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return rows, offsets_of(torch.tensor(sizes, dtype=torch.int64))


@pytest.mark.parametrize("how", OF_ROWS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_values_and_gradients_are_those_of_a_loop(sizes: tuple[int, ...], how: str) -> None:
    rows, ptr = rows_of(sizes, torch.float64)
    # Of one vertex the deviation is 0, where its gradient is defined by sagann alone.
    if how == "std" and 1 in sizes:
        sizes = tuple(2 * size for size in sizes)
        rows, ptr = rows_of(sizes, torch.float64)
    rows.requires_grad_()
    assert_same_gradients(zoo.pool(rows, ptr, how), plain(rows, sizes, how), [rows])


def test_of_equal_maxima_the_first_one_gets_the_gradient() -> None:
    rows = torch.zeros(3, 1, requires_grad=True)
    zoo.pool(rows, torch.tensor([0, 3]), "max").sum().backward()
    assert rows.grad is not None
    assert rows.grad.flatten().tolist() == [1.0, 0.0, 0.0]


def test_a_model_that_pools_has_no_further_hop() -> None:
    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = zoo.GIN(5, 5)

        def forward(self, hops, x, graph_ptr):
            return zoo.pool(self.layer(hops[0], x), graph_ptr)

    assert count_hops(Pooled()) == 1


BAD = {
    "decrease": (torch.ones(4, 2), torch.tensor([0, 3, 2, 4]), r"graph offsets decrease: 3 then 2 at position 1"),
    "other ends": (torch.ones(4, 2), torch.tensor([0, 3]), r"from 0 to 3, expected 0 to 4 \(in pool, graph_ptr\)"),
    "a number per vertex": (torch.ones(4, 2), torch.tensor([0.0, 0.0, 1.0, 1.0]), r"torch\.float32 \[4\], expected torch\.int64 \[num_graphs \+ 1\]"),
    "no offset": (torch.ones(0, 2), torch.empty(0, dtype=torch.int64), r"expected torch\.int64 \[num_graphs \+ 1\]"),
    "one dimension": (torch.ones(4), torch.tensor([0, 4]), r"rows\.unsqueeze\(1\)"),
    "no tensor": (torch.ones(4, 2), [0, 4], r"pool, graph_ptr"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "ptr", "message"), BAD.values(), ids=BAD)
def test_offsets_that_do_not_fit_are_refused(rows: Tensor, ptr: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        zoo.pool(rows, ptr)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("average", r"unknown accumulator: 'average', expected one of sum, mean"),
        ("softmax", r"an accumulator that cannot pool: 'softmax' .*\(in pool, how\).*weight rows by a score"),
        ("concat", r"an accumulator that cannot pool: 'concat'"),
        (("mean", "softmax"), r"accumulators that cannot be combined: softmax among 2"),
        (["mean"], r"Name an accumulator, or several in a tuple"),
    ],
)
def test_what_cannot_pool_is_refused(how: object, message: str) -> None:
    with pytest.raises((LayerError, InputError), match=message):
        zoo.pool(torch.ones(2, 2), torch.tensor([0, 2]), how)

"""A model of PyG is trained as it is: in memory, streamed, on mini-batches; its weights are the user's."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from sagann.errors import LayerError
from sagann.graph import Graph
from sagann.interop import from_pyg_model
from sagann.plan import equal_vertices
from sagann.runtime.streaming.streamed import StreamedModel
from tests.graphs import edge_index
from tests.interop.pyg_models import (
    CLASSES,
    EDGE_DIM,
    WIDTH,
    Attributed,
    Encoded,
    Plain,
    Two,
    assert_as_in_pyg,
    gat,
    logits_of,
    mlp,
    prepared,
    pyg_graph,
    rows_in_pyg,
    sage,
    seeded,
    small,
    trainer_of,
)
from tests.tolerances import assert_close
from tests.train.runs import assert_same_bits, weights_of

# Training


def test_training_changes_the_users_model_which_pyg_uses_as_before() -> None:
    model, graph = seeded(gat), small()
    names, before = list(model.state_dict()), weights_of(model)
    trainer = trainer_of(model, graph)
    result = trainer.fit()
    assert result.history[-1].loss < result.history[0].loss * 1.5
    assert list(model.state_dict()) == names == list(trainer.model.state_dict())
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # The weights in a model that sagann has not seen.
    other = gat()
    other.load_state_dict(trainer.model.state_dict())
    assert_close(logits_of(trainer, graph), rows_in_pyg(other, graph))
    assert_close(rows_in_pyg(model, graph), rows_in_pyg(other, graph))


def test_nothing_of_sagann_is_left_in_the_users_model() -> None:
    graph = small()
    model = seeded(sage)
    before = [(module, set(vars(module)), type(module)) for module in model.modules()]
    trainer_of(model, graph, epochs=1).fit()
    for module, names, kind in before:
        assert set(vars(module)) == names
        assert type(module) is kind
    file = io.BytesIO()
    torch.save(model, file)
    assert b"sagann.interop" not in file.getvalue()
    x, edges = graph.features, edge_index(graph.topology)
    assert_close(torch.jit.script(model.first)(x, edges), model.first(x, edges))


def test_a_layer_that_is_changed_later_is_refused() -> None:
    def turns(conv: Any) -> None:
        conv.flow = "target_to_source"

    def hooks(conv: Any) -> None:
        conv.register_message_forward_hook(lambda module, inputs, output: 2 * output)

    def aggregates(conv: Any) -> None:
        conv.aggr_module = pyg.aggr.MaxAggregation()

    graph = small()
    for change in (turns, hooks, aggregates):
        model = seeded(sage)
        trainer = trainer_of(model, graph, epochs=1)
        change(model.second)
        with pytest.raises(LayerError, match="SAGEConv"):
            trainer.fit()


def test_attributes_that_the_model_sets_are_its_own() -> None:
    class Counts(Plain):
        num_calls, last = 0, None

        def forward(self, x: Tensor, edge_index: Tensor) -> Any:
            self.num_calls += 1
            self.last = self.conv(x, edge_index)
            return self.last

    graph, model = small(), seeded(lambda: Counts(pyg.SAGEConv(WIDTH, CLASSES)))
    ours, *given = prepared(model, graph)
    known = model.num_calls
    out = ours(*given)
    assert model.num_calls == known + 1
    assert model.last is out


class Degrees(pyg.MessagePassing):
    """A message that reads nothing."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.after = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.after(x) * self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j.new_ones(x_j.size(0), 1)


STREAMED: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "transformer": (lambda: Attributed(pyg.TransformerConv(WIDTH, CLASSES, edge_dim=EDGE_DIM)), ("attr",)),
    "encoded": (lambda: Encoded(pyg.GINEConv(mlp())), ("attr",)),
    "degrees": (Degrees, ()),
    "batch norm": (lambda: pyg.GraphSAGE(WIDTH, WIDTH, 2, CLASSES, norm="batch", jk="cat"), ()),
}


@pytest.mark.parametrize("name", STREAMED)
def test_streamed_values_and_gradients_are_those_of_pyg(name: str) -> None:
    build, data = STREAMED[name]

    def streamed(ours: Any, prepared: Graph, x: Tensor) -> Tensor:
        intervals = equal_vertices(prepared.num_vertices, 3)
        return StreamedModel(ours, prepared.hops(ours.num_hops), intervals)(x)

    assert_as_in_pyg(seeded(build).double(), pyg_graph(*data), run=streamed)


# Mini-batches


class Parallel(nn.Module):
    """Two layers side by side, then one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = pyg.SAGEConv(WIDTH, WIDTH), pyg.GraphConv(WIDTH, WIDTH)
        self.last = pyg.GATv2Conv(WIDTH, CLASSES, add_self_loops=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.last((self.first(x, edge_index) + self.other(x, edge_index)).relu(), edge_index)


def test_layers_side_by_side_walk_the_same_hop() -> None:
    model, graph = seeded(Parallel), small("attr")
    assert from_pyg_model(model, graph).levels == (0, 0, 1)
    trainer = trainer_of(model, graph, sample=(5, 5), batch_size=7)
    trainer.fit()
    assert_close(logits_of(trainer, graph), rows_in_pyg(model, graph))


# Random numbers


def test_dropout_of_attention_keeps_the_mean() -> None:
    graph = small()
    model = seeded(lambda: Plain(pyg.GATConv(WIDTH, WIDTH, dropout=0.3)))
    ours, *given = prepared(model, graph)
    with torch.no_grad():
        mean = torch.stack([ours(*given) for _ in range(600)]).mean(0)
    expected = rows_in_pyg(model, graph)
    assert (mean - expected).abs().max() < 0.2 * expected.abs().max()
    assert torch.nn.functional.mse_loss(mean, expected) < 2e-3 * expected.square().mean()


# Other ways to call a model


class OfData(Two):
    """A model that takes a graph."""

    def forward(self, data: Data) -> Any:
        x, edges, weights = data.x, data.edge_index, data.edge_weight
        x = nn.functional.dropout(self.first(x, edges, weights).relu(), training=self.training)
        return self.second(x, edges, weights)


def test_a_model_that_takes_a_graph() -> None:
    graph = small("weight")
    model = seeded(lambda: OfData(pyg.GCNConv(WIDTH, WIDTH), pyg.GCNConv(WIDTH, CLASSES)))
    trainer = trainer_of(model, graph)
    trainer.fit()
    weight = graph.topology.edge_data["weight"]
    data = Data(x=graph.features, edge_index=edge_index(graph.topology), edge_weight=weight)
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(data)
    assert_close(logits_of(trainer, graph), expected)


def test_an_embedding_is_the_input_of_the_last_layer_of_pyg() -> None:
    graph, model = small(), seeded(gat)
    with torch.no_grad():
        hidden = copy.deepcopy(model).eval().first(graph.features, edge_index(graph.topology)).relu()
    assert_close(trainer_of(model, graph).embed(), hidden)


# Weights and copies


def test_copies_and_pickles_compute_the_same() -> None:
    graph = small()
    ours, hops, x = prepared(seeded(sage), graph)
    expected = ours(hops, x)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(other(hops, x), expected)
        with torch.no_grad():
            other.model.first.lin_l.weight.zero_()
        assert not torch.equal(other(hops, x), expected)
        assert torch.equal(ours(hops, x), expected)
    # The user's model as well.
    model = pickle.loads(pickle.dumps(ours.model))
    assert_close(model(x, edge_index(graph.topology)), expected)


def test_names_and_loading() -> None:
    graph = small()
    model = seeded(gat)
    ours = from_pyg_model(model, graph)
    assert list(ours.state_dict()) == list(seeded(gat).state_dict())
    names = [name.removeprefix("model.") for name, _ in ours.named_parameters()]
    assert names == [name for name, _ in model.named_parameters()]
    other = from_pyg_model(seeded(gat, seed=2), graph)
    other.load_state_dict(ours.state_dict())
    assert_same_bits(weights_of(other.model), weights_of(model))
    third = from_pyg_model(seeded(gat, seed=3), graph)
    holder, again = (nn.ModuleDict({"gnn": each}) for each in (other, third))
    assert list(holder.state_dict()) == [f"gnn.{name}" for name in ours.state_dict()]
    again.load_state_dict(holder.state_dict())
    assert_same_bits(weights_of(again), weights_of(holder))
    wrong = ours.state_dict()
    wrong["more"] = wrong.pop(next(iter(wrong)))
    with pytest.raises(RuntimeError, match=r"(?s)Missing key.*Unexpected key.*more"):
        ours.load_state_dict(wrong)

"""Models of PyG that sagann cannot compute as PyG does are refused, before they are trained, and the error says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn.aggr import VarAggregation
from torch_geometric.utils import softmax

from sagann.errors import InputError, LayerError, SagannError
from sagann.interop import from_pyg_model
from sagann.nn import GraphModel, LinkModel
from tests.interop.pyg_models import (
    WIDTH,
    Attributed,
    Own,
    Plain,
    Two,
    Weighted,
    pyg_graph,
    seeded,
    small,
    trainer_of,
)


class Entries(Own):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index) + x[edge_index[0]].sum(dim=0)


class OwnAggregate(Own):
    def aggregate(self, inputs: Tensor, index: Tensor) -> Tensor:
        return torch.zeros(30, WIDTH).index_add(0, index, inputs)


class ReadsIndex(Own):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j / torch.bincount(index)[index].unsqueeze(-1)


class TwoSoftmaxes(Own):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor) -> Tensor:
        return softmax(x_j[:, :1], index) * x_j + softmax(x_i[:, :1], index) * x_i


class SoftmaxAndMean(Own):
    def __init__(self) -> None:
        super().__init__(aggr="mean")

    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return softmax(x_j[:, :1], index) * x_j


class OtherLayout(Own):
    """Heads weigh other columns of the message than neighbouring ones."""

    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        alpha = softmax(x_j[:, :2], index)
        return (alpha.unsqueeze(1) * x_j.view(-1, WIDTH // 2, 2)).flatten(1)


class OtherInTraining(Own):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        alpha = softmax(x_j[:, :1], index)
        return (alpha**2 if self.training else alpha) * x_j


class TwoOfAKind(Two):
    def __init__(self) -> None:
        super().__init__(pyg.GCNConv(WIDTH, WIDTH), pyg.GCNConv(WIDTH, WIDTH))


class WeightsForOne(TwoOfAKind):
    """Two layers, one of which gets the weights."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
        return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index)


class ZerosAtFirst(WeightsForOne):
    """Its last map is all zeros before it is trained, and so are its results."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 3)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
        return self.out(super().forward(x, edge_index, edge_weight))


class MapsWeights(Weighted):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
        return self.conv(x, edge_index, 2 * edge_weight)


class Branch(Weighted):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
        return self.conv(x, edge_index, edge_weight if (edge_weight > 0).all() else -edge_weight)


class Attention(Plain):
    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        x, _ = self.conv(x, edge_index, return_attention_weights=True)
        return x


class Pair(Plain):
    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return x, self.conv(x, edge_index)


class OwnRows(nn.Module):
    """Rows of its own for 30 vertices."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.conv = nn.Embedding(30, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.conv(self.rows.weight, edge_index)


class OtherReceiver(pyg.MessagePassing):
    def forward(this, x: Tensor, edge_index: Tensor) -> Tensor:  # noqa: N805
        return this.propagate(edge_index, x=x)


def hooked() -> nn.Module:
    conv = pyg.SAGEConv(WIDTH, WIDTH)
    conv.register_message_forward_hook(lambda module, inputs, output: 2 * output)
    return Plain(conv)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "reads edge_index": (lambda: Plain(Entries()), r"computes with edge_index: it uses its entries.*test_pyg_refusals.py:\d+: .*x\[edge_index\[0\]\]"),
    "Chebyshev": (lambda: Plain(pyg.ChebConv(WIDTH, WIDTH, 2)), r"computes with edge_index.*pyg_models.py:\d+: return self.conv\(x, edge_index\)"),
    "own aggregate": (lambda: Plain(OwnAggregate()), "it has an aggregate of its own"),
    "flow": (lambda: Plain(pyg.SAGEConv(WIDTH, WIDTH, flow="target_to_source")), "flow = 'target_to_source'"),
    "improved": (lambda: Plain(pyg.GCNConv(WIDTH, WIDTH, improved=True)), "improved = True"),
    "cached": (lambda: Plain(pyg.SGConv(WIDTH, WIDTH, cached=True)), "cached = True"),
    "hooks": (hooked, "hooks of PyG"),
    "median": (lambda: Plain(pyg.SAGEConv(WIDTH, WIDTH, aggr="median")), "aggr = MedianAggregation"),
    "index": (lambda: Plain(ReadsIndex()), "reads the ids of destinations"),
    "two softmaxes": (lambda: Plain(TwoSoftmaxes()), "2 softmaxes in one message"),
    "softmax and mean": (lambda: Plain(SoftmaxAndMean()), "a softmax, and then mean"),
    "other layout": (lambda: Plain(OtherLayout()), "gives other numbers"),
    "other in training": (lambda: Plain(OtherInTraining()), "its layers are OtherInTraining, in training"),
    "var without gradient": (lambda: Plain(pyg.SAGEConv(WIDTH, WIDTH, aggr=VarAggregation(semi_grad=True))), "gives other numbers"),
    "weights for one": (WeightsForOne, "gives other numbers.*gets no edge_weight where others get it"),
    "zeros at first": (ZerosAtFirst, "gives other numbers"),
    "mixed": (lambda: Two(pyg.GCNConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)), "prepared in different ways.*GCNConv.*SAGEConv.*add_self_loops=False"),
    "maps weights": (lambda: MapsWeights(pyg.GCNConv(WIDTH, WIDTH)), r"computes with weights that are normalised by degree.*edge_weight as it is"),
    "a branch": (lambda: Branch(pyg.GraphConv(WIDTH, WIDTH)), "computes with a row per edge: it uses a branch"),
    "loops without features": (lambda: Attributed(pyg.GATConv(WIDTH, WIDTH, edge_dim=3)), "edge data has no value for self-loops: the layers add self-loops, and read attr.*add_self_loops=False"),
    "attention weights": (lambda: Attention(pyg.GATConv(WIDTH, WIDTH)), r"Error: .*does not run without its edges.*py:\d+: x, _ = self.conv\(x, edge_index, return_attention_weights=True\)"),
    "a mistake": (lambda: Plain(pyg.GCNConv(WIDTH + 1, WIDTH)), r"^RuntimeError: mat1 and mat2.*does not run with it on 13 made-up vertices.*py:\d+: return self.conv\(x, edge_index\).*PyTorch Geo"),
    "rows of its own": (OwnRows, r"vertex features do not fit.*\[30, 8\], expected.*\[13, F\].*on 13 made-up vertices.*py:\d+: return self.conv\(self.rows.weight"),
    "another receiver": (lambda: Plain(OtherReceiver()), r"^TypeError: propagate\(\) got.*py:\d+: return this"),
    "a pair": (lambda: Pair(pyg.SAGEConv(WIDTH, WIDTH)), "a model must return a tensor: a tuple"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    build, said = REFUSED[name]
    graph = small("weight", "attr")
    model = build()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(LayerError, match=f"(?s){said}") as error:
        from_pyg_model(model, graph)
    # What failed, and what to do.
    assert isinstance(error.value, SagannError)
    assert str(error.value).count(". ") >= 1
    # The model is as it was.
    assert model.training
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


def test_other_models() -> None:
    class WithoutLayers(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return x

    class CalledOtherwise(Plain):
        def forward(self, hops: Any, x: Tensor) -> Any:
            return x

    graph = pyg_graph()
    takes = r"Pass a model whose forward takes \(x, edge_index\), or a Data object"
    for model in (WithoutLayers(), CalledOtherwise(pyg.SAGEConv(WIDTH, WIDTH))):
        with pytest.raises(InputError, match=takes):
            from_pyg_model(model, graph)


def test_graphs_without_features() -> None:
    graph = replace(pyg_graph(), features=None)
    with pytest.raises(InputError, match=r"needs features.*graph 'tiny'.*EmbeddingEncoder"):
        from_pyg_model(Plain(pyg.GCNConv(WIDTH, WIDTH)), graph)


def test_models_of_pyg_in_other_models() -> None:
    model = pyg.GraphSAGE(WIDTH, WIDTH, 2, WIDTH)
    said = r"GraphSAGE is called as model\(hops, x\).*Pass sagann.interop.from_pyg_mod"
    for holder, sizes in ((GraphModel, (WIDTH, 2)), (LinkModel, (WIDTH,))):
        with pytest.raises(InputError, match=said):
            holder(model, *sizes)


def test_errors_name_the_users_class() -> None:
    model = Plain(pyg.GCNConv(WIDTH, WIDTH))
    with pytest.raises(LayerError, match=r"a column per class.*in model Plain"):
        trainer_of(model, small()).fit()


def test_a_model_that_calls_other_layers_in_training() -> None:
    class Either(TwoOfAKind):
        def forward(self, x: Tensor, edge_index: Tensor) -> Any:
            return (self.first if self.training else self.second)(x, edge_index)

    class Shorter(Either):
        def forward(self, x: Tensor, edge_index: Tensor) -> Any:
            x = self.first(x, edge_index)
            return x if self.training else self.first(x, edge_index)

    for build in (Either, Shorter):
        with pytest.raises(LayerError, match=r"propagates now this, now that.*Let it call the same layers"):
            from_pyg_model(seeded(build), small())

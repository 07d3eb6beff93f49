"""Every kind of layer of PyG gives the numbers, and the gradients, that it gives in PyG."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg, utils
from torch_geometric.nn.aggr import SoftmaxAggregation
from torch_geometric.utils import softmax

from tests.graphs import edge_index as edges_of, labelled_graph
from tests.interop.pyg_models import (
    EDGE_DIM,
    WIDTH,
    Attributed,
    Encoded,
    FromFirst,
    Own,
    Plain,
    Weighted,
    assert_as_in_pyg,
    mlp,
    prepared,
    pyg_graph,
    seeded,
)
from tests.tolerances import assert_close


def pna(**options: Any) -> nn.Module:
    scalers = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
    return pyg.PNAConv(WIDTH, WIDTH, ["mean", "max", "std"], scalers, torch.arange(9), **options)


class EncodedType(nn.Module):
    """Types of edges that the model looks up, and weights that it computes with."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv, self.again, self.lookup = conv, pyg.GraphConv(WIDTH, WIDTH), nn.Embedding(3, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor, edge_type: Tensor) -> Tensor:
        x = self.conv(x, edge_index, self.lookup(edge_type))
        return self.again(x, edge_index, 1 / (edge_weight + (edge_type == 1).to(x.dtype)))


class OwnAttention(pyg.MessagePassing):
    """Scores of its own, of which softmax is taken in message; edge features and an update."""

    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.score, self.edge = nn.Linear(2 * WIDTH, 1), nn.Linear(EDGE_DIM, WIDTH)
        self.after = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor, index: Tensor) -> Tensor:
        alpha = softmax(self.score(torch.cat([x_i, x_j], dim=-1)), index)
        return alpha * (x_j + self.edge(edge_attr))

    def update(self, inputs: Tensor, x: Tensor) -> Tensor:
        return self.after(inputs) + x


class Heads(Own):
    """Two heads whose messages lie side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, 2)

    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        alpha = softmax(self.score(x_j), index)
        return (alpha.unsqueeze(-1) * x_j.view(-1, 2, WIDTH // 2)).flatten(1)


class ZeroAtFirst(pyg.MessagePassing):
    """What it reads of the edges counts for nothing before it is trained."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.edge, self.gate = nn.Linear(EDGE_DIM, WIDTH), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_j: Tensor, edge_attr: Tensor | None) -> Tensor:
        return x_j if edge_attr is None else x_j + self.gate * self.edge(edge_attr)


class Pairs(Own):
    """A pair of rows, which update gets as it is."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=(x.relu(), x))

    def update(self, inputs: Tensor, x: tuple[Tensor, Tensor]) -> Tensor:
        return inputs + x[1]


class GCNConv(Own):
    """Not PyG's layer of this name: it weighs nothing."""


class Flat(pyg.MessagePassing):
    """Rows that are one number, and a number for all edges."""

    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.height = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        height = self.height(x).squeeze(-1)
        return self.propagate(edge_index, x=x, height=height, slope=0.5)

    def message(self, x_j: Tensor, height_i: Tensor, height_j: Tensor, slope: float) -> Tensor:
        return torch.exp(-slope * (height_i - height_j) ** 2).unsqueeze(-1) * x_j


class Scored(pyg.MessagePassing):
    """Softmax as an attribute of a module, in a helper of the layer, and in a function; a first argument that is not x."""

    def __init__(self, how: str) -> None:
        super().__init__(aggr="add")
        self.how = how

    def forward(self, rows: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, rows=rows)

    def message(self, rows_j: Tensor, index: Tensor) -> Tensor:
        scores = rows_j[:, :1]
        if self.how == "module":
            return utils.softmax(scores, index) * rows_j
        if self.how == "function":
            return weights_of(scores, index) * rows_j
        return (self.weigh(scores, index) if self.how == "method" else self.weigh_alone(scores, index)) * rows_j

    def weigh(self, scores: Tensor, index: Tensor) -> Tensor:
        return softmax(scores, index)

    @staticmethod
    def weigh_alone(scores: Tensor, index: Tensor) -> Tensor:
        return utils.softmax(scores, index=index)


def weights_of(scores: Tensor, index: Tensor) -> Tensor:
    return softmax(scores, index)


class Doubled(pyg.GATConv):
    """It calls the attention of its base."""

    def edge_update(
        self, alpha_j: Tensor, alpha_i: Tensor, edge_attr: Any, index: Tensor, ptr: Any, dim_size: Any
    ) -> Tensor:
        return 2 * super().edge_update(alpha_j, alpha_i, edge_attr, index, ptr, dim_size)


class ByKeyword(Plain):
    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.conv(edge_index=edge_index, rows=x)


class AsksForm(Plain):
    """It asks for the form of the edges before it passes them on."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        assert edge_index.dtype == torch.int64
        assert edge_index.dim() == edge_index.size(0) == edge_index.shape[0] == 2
        if edge_index.numel() == 0:
            return x
        return self.conv(x.to(edge_index.device), edge_index.to(x.device)) / edge_index.size(1)


class Checkpointed(nn.Module):
    """Layers that are computed again in the backward, one of them twice."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = pyg.SAGEConv(WIDTH, WIDTH), pyg.TransformerConv(WIDTH, WIDTH)
        self.norm, self.use_reentrant = nn.LayerNorm(WIDTH), use_reentrant

    def _block(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.norm(x).relu(), edge_index)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        x = self.first(x, edge_index)
        for _ in range(2):
            x = x + checkpoint(self._block, x, edge_index, use_reentrant=self.use_reentrant)
        return x


class Lookup(nn.Module):
    """Categories, which lie in the graph as floating numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.conv = nn.Embedding(3, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.conv(self.rows(x[:, 0].long()), edge_index)


Build = Callable[[], nn.Module]
PLAIN: dict[str, Build] = {
    "gcn": lambda: pyg.GCNConv(WIDTH, WIDTH),
    "gcn without loops": lambda: pyg.GCNConv(WIDTH, WIDTH, add_self_loops=False),
    "gcn without weights": lambda: pyg.GCNConv(WIDTH, WIDTH, normalize=False),
    "sage": lambda: pyg.SAGEConv(WIDTH, WIDTH),
    "sage others": lambda: pyg.SAGEConv(WIDTH, WIDTH, aggr=["min", "mul", "var"]),
    "sage project": lambda: pyg.SAGEConv(WIDTH, WIDTH, project=True, root_weight=False, normalize=True),
    "sage several": lambda: pyg.SAGEConv(WIDTH, WIDTH, aggr=["mean", "max", "std"]),
    "gat": lambda: pyg.GATConv(WIDTH, WIDTH // 2, heads=2),
    "gat without loops": lambda: pyg.GATConv(WIDTH, WIDTH // 2, heads=2, add_self_loops=False, concat=False),
    "gatv2": lambda: pyg.GATv2Conv(WIDTH, WIDTH // 2, heads=2),
    "transformer": lambda: pyg.TransformerConv(WIDTH, WIDTH // 2, heads=2),
    "gin": lambda: pyg.GINConv(mlp(), train_eps=True),
    "edge": lambda: pyg.EdgeConv(mlp(2 * WIDTH)),
    "gated": lambda: pyg.GatedGraphConv(WIDTH, 2),
    "gen": lambda: pyg.GENConv(WIDTH, WIDTH),
    "gen learned": lambda: pyg.GENConv(WIDTH, WIDTH, learn_t=True, msg_norm=True, learn_msg_scale=True),
    "sg": lambda: pyg.SGConv(WIDTH, WIDTH, K=2),
    "tag": lambda: pyg.TAGConv(WIDTH, WIDTH, K=2),
    "appnp": lambda: pyg.APPNP(K=2, alpha=0.1),
    "appnp without weights": lambda: pyg.APPNP(K=2, alpha=0.1, normalize=False),
    "pna": lambda: pna(towers=2, divide_input=True),
    "simple self-loop": lambda: pyg.SimpleConv(aggr="mean", combine_root="self_loop"),
    "softmax of a module": lambda: Scored("module"),
    "softmax in a method": lambda: Scored("method"),
    "softmax in a static method": lambda: Scored("static"),
    "softmax in a function": lambda: Scored("function"),
    "attention of the base": lambda: Doubled(WIDTH, WIDTH // 2, heads=2),
    "softmax": lambda: pyg.SAGEConv(WIDTH, WIDTH, aggr=SoftmaxAggregation(learn=True)),
    "mix-hop": lambda: pyg.MixHopConv(WIDTH, WIDTH, powers=[0, 1, 2]),
    "own flat": Flat,
    "own heads": Heads,
    "own pairs": Pairs,
    "own of a known name": GCNConv,
}
ATTRIBUTED: dict[str, Build] = {
    "gat": lambda: pyg.GATConv(WIDTH, WIDTH // 2, heads=2, edge_dim=EDGE_DIM, add_self_loops=False),
    "transformer": lambda: pyg.TransformerConv(WIDTH, WIDTH // 2, heads=2, edge_dim=EDGE_DIM, beta=True),
    "gine": lambda: pyg.GINEConv(mlp(), edge_dim=EDGE_DIM),
    "nn": lambda: pyg.NNConv(WIDTH, WIDTH, nn.Linear(EDGE_DIM, WIDTH * WIDTH)),
    "gmm": lambda: pyg.GMMConv(WIDTH, WIDTH, EDGE_DIM, 2),
    "own attention": OwnAttention,
    "own zero at first": ZeroAtFirst,
}
WEIGHTED: dict[str, Build] = {
    "gcn": lambda: pyg.GCNConv(WIDTH, WIDTH),
    "gcn without loops": lambda: pyg.GCNConv(WIDTH, WIDTH, add_self_loops=False),
    "gcn without normalisation": lambda: pyg.GCNConv(WIDTH, WIDTH, normalize=False),
    "graph": lambda: pyg.GraphConv(WIDTH, WIDTH),
    "appnp": lambda: pyg.APPNP(K=2, alpha=0.1),
    "simple self-loop": lambda: pyg.SimpleConv(aggr="sum", combine_root="self_loop"),
}
MODELS: dict[str, Build] = {
    "gcn": lambda: pyg.GCN(WIDTH, WIDTH, 2, WIDTH, norm="batch"),
    "sage": lambda: pyg.GraphSAGE(WIDTH, WIDTH, 2, WIDTH, jk="cat"),
    "gin": lambda: pyg.GIN(WIDTH, WIDTH, 2, WIDTH, jk="max", act_first=True, norm="layer"),
    "gat": lambda: pyg.GAT(WIDTH, WIDTH, 2, WIDTH, heads=2, jk="lstm"),
    "pna": lambda: pyg.PNA(
        WIDTH, WIDTH, 2, WIDTH, aggregators=["mean", "std"], scalers=["amplification"], deg=torch.arange(9)
    ),
    "edge-cnn": lambda: pyg.EdgeCNN(WIDTH, WIDTH, 2, WIDTH),
}


def assert_same(build: Build, kind: Any, *data: str) -> None:
    model = kind(build()).double() if build is ZeroAtFirst else seeded(lambda: kind(build())).double()
    assert_as_in_pyg(model, pyg_graph(*data))


@pytest.mark.parametrize("name", PLAIN)
def test_layers(name: str) -> None:
    # The graph has weights and features of edges that the model does not take.
    assert_same(PLAIN[name], Plain, "weight", "attr")


@pytest.mark.parametrize("name", ATTRIBUTED)
def test_layers_that_read_features_of_edges(name: str) -> None:
    assert_same(ATTRIBUTED[name], Attributed, "attr", "weight")


@pytest.mark.parametrize("name", WEIGHTED)
def test_layers_that_read_weights(name: str) -> None:
    assert_same(WEIGHTED[name], Weighted, "weight")


@pytest.mark.parametrize("name", MODELS)
def test_models_of_pyg(name: str) -> None:
    assert_as_in_pyg(seeded(MODELS[name]).double(), pyg_graph())


@pytest.mark.parametrize("normalize", [True, False])
def test_gcn2(normalize: bool) -> None:
    assert_same(lambda: pyg.GCN2Conv(WIDTH, 0.1, theta=0.5, layer=1, normalize=normalize), FromFirst)


def test_an_mlp_that_propagates_in_evaluation_alone() -> None:
    model = seeded(lambda: pyg.PMLP(WIDTH, WIDTH, WIDTH, 2, dropout=0.0)).double()
    for training in (False, True):
        assert_as_in_pyg(copy.deepcopy(model).train(training), pyg_graph())


def test_a_first_argument_by_keyword() -> None:
    assert_same(lambda: Scored("module"), ByKeyword)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(use_reentrant: bool) -> None:
    assert_as_in_pyg(seeded(lambda: Checkpointed(use_reentrant=use_reentrant)).double(), pyg_graph())


def test_the_form_of_the_edges() -> None:
    assert_same(lambda: pyg.SAGEConv(WIDTH, WIDTH), AsksForm)


def test_categories_that_the_model_looks_up() -> None:
    graph = pyg_graph()
    categories = (torch.arange(graph.num_vertices) % 3).double().unsqueeze(1)
    assert_as_in_pyg(seeded(Lookup).double(), replace(graph, features=categories))


def test_edge_data_that_the_model_computes_with() -> None:
    assert_same(lambda: pyg.GINEConv(mlp()), Encoded, "attr")


def test_edge_types_that_the_model_looks_up() -> None:
    assert_same(lambda: pyg.GINEConv(mlp()), EncodedType, "weight", "type")


def test_edge_weights_are_read_behind_units_that_have_died() -> None:
    """On made-up rows a ReLU may give nothing but zeros, of which a weight changes none."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.conv = nn.Linear(8, 8), pyg.GCNConv(8, 3)
            nn.init.constant_(self.linear.bias, -1e3)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv(self.linear(x).relu(), edge_index)

    torch.manual_seed(0)
    graph, net = labelled_graph(), Net()
    ours, *given = prepared(net, graph)
    nn.init.zeros_(net.linear.bias)
    assert_close(ours(*given), net(graph.features, edges_of(graph.topology)))


@pytest.mark.parametrize("hold", [list, tuple, lambda convs: dict(enumerate(convs))])
def test_layers_that_a_model_also_holds_in_a_container_run(hold: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = pyg.SAGEConv(8, 8), pyg.SAGEConv(8, 3)
            self.convs, self.kept = hold((self.first, self.second)), {}

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            self.kept = {"edges": edge_index}
            return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)

    torch.manual_seed(0)
    graph, net = labelled_graph(), Net()
    right = net(graph.features, edges_of(graph.topology))
    ours, *given = prepared(net, graph)
    assert_close(ours(*given), right)
    assert isinstance(net.kept["edges"], torch.Tensor)
    assert net.convs[0] is net.first

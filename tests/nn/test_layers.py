"""Every layer that PyG has as well: the same outputs and all the same gradients, with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from sagann import nn as zoo
from sagann.graph import Graph, Topology
from sagann.saga import SagaLayer
from tests.graphs import edge_index, odd_topologies
from tests.tolerances import assert_close, largest

pytestmark = pytest.mark.peers

IN_DIM, OUT_DIM, HEADS = 6, 4, 3


class Twin(NamedTuple):
    """A layer of ours, what PyG has for it, and which module or parameter of ours is which of theirs."""

    ours: SagaLayer
    theirs: nn.Module
    same: dict[str, str]
    call: Callable[[Any, Tensor, Topology], Tensor] = lambda theirs, x, topology: theirs(x, edge_index(topology))

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        theirs, found = dict(self.theirs.named_parameters()), []
        for name, parameter in self.ours.named_parameters():
            begin = next(begin for begin in self.same if name == begin or name.startswith(f"{begin}."))
            found.append((parameter, theirs[self.same[begin] + name.removeprefix(begin)]))
        return found


def weighted(theirs: nn.Module, x: Tensor, topology: Topology) -> Tensor:
    return theirs(x, edge_index(topology), topology.edge_data["weight"])


def beside(convolution: nn.Module, linear: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({"conv": convolution, "linear": linear})


OF_GCN = {"linear.weight": "conv.lin.weight", "linear.bias": "conv.bias", "shortcut": "linear"}
OF_GRU = {f"gru.{name}": f"rnn.{name}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
OF_ATTENTION = {
    "gat": {"project": "lin", "bias": "bias", "attend_src": "att_src", "attend_dst": "att_dst"},
    "gatv2": {"of_src": "lin_l", "of_dst": "lin_r", "attend": "att", "bias": "bias"},
    "transformer": {"query": "lin_query", "key": "lin_key", "value": "lin_value", "own": "lin_skip"},
}


def residual_gcn() -> Twin:
    def call(theirs: Any, x: Tensor, topology: Topology) -> Tensor:
        return torch.relu(weighted(theirs["conv"], x, topology)) + theirs["linear"](x)

    theirs = beside(pyg.GCNConv(IN_DIM, OUT_DIM), nn.Linear(IN_DIM, OUT_DIM, bias=False))
    return Twin(zoo.ResidualGCN(IN_DIM, OUT_DIM), theirs, OF_GCN, call)


def identity_residual_gcn() -> Twin:
    theirs = beside(pyg.GCNConv(IN_DIM, IN_DIM), nn.Identity())
    ours = zoo.ResidualGCN(IN_DIM, IN_DIM, activated=False)
    return Twin(ours, theirs, OF_GCN, lambda theirs, x, topology: weighted(theirs["conv"], x, topology) + x)


def maxpool_gcn() -> Twin:
    theirs = pyg.SAGEConv(IN_DIM, OUT_DIM, aggr="max", project=True, root_weight=False)
    return Twin(zoo.MaxPoolGCN(IN_DIM, OUT_DIM), theirs, {"pool": "lin", "linear": "lin_l"})


def gated_gcn() -> Twin:
    gates = pyg.ResGatedGraphConv(IN_DIM, IN_DIM, root_weight=False, bias=False)
    # PyG sends W_V h_v along the edge; the paper sends h_v itself.
    gates.lin_value.weight.data, gates.lin_value.bias.data = torch.eye(IN_DIM), torch.zeros(IN_DIM)
    gates.lin_key.bias.data.zero_()
    same = {"gate_dst": "conv.lin_key", "gate_src": "conv.lin_query", "linear": "linear"}

    def call(theirs: Any, x: Tensor, topology: Topology) -> Tensor:
        return theirs["linear"](theirs["conv"](x, edge_index(topology)))

    return Twin(zoo.GatedGCN(IN_DIM, OUT_DIM), beside(gates, nn.Linear(IN_DIM, OUT_DIM)), same, call)


def of_mlp(ours: zoo.GIN | zoo.GINE, kind: Callable[..., nn.Module], **options: Any) -> Twin:
    mlp = nn.Sequential(nn.Linear(IN_DIM, OUT_DIM), nn.ReLU(), nn.Linear(OUT_DIM, OUT_DIM))
    theirs = kind(mlp, train_eps=True, **options)
    ours.eps.data.fill_(0.25)
    same = {"eps": "eps", "of_edge": "lin", "mlp": "nn"}

    def call(theirs: Any, x: Tensor, topology: Topology) -> Tensor:
        return theirs(x, edge_index(topology), *([topology.edge_data["attr"]] if options else []))

    return Twin(ours, theirs, same, call)


def pna() -> Twin:
    histogram = torch.tensor([3, 5, 2, 1])
    mean = float((histogram * torch.log1p(torch.arange(4.0))).sum() / histogram.sum())
    ours = zoo.PNA(IN_DIM, OUT_DIM, mean)
    ways, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    theirs = pyg.PNAConv(IN_DIM, OUT_DIM, aggregators=ways, scalers=scalers, deg=histogram)
    # It is computed in float32 there.
    ours.mean_log_degree = theirs.aggr_module.avg_deg_log.detach().double().reshape(())
    return Twin(ours, theirs, {"message": "pre_nns.0.0", "mix": "post_nns.0.0", "out": "lin"})


def rgcn() -> Twin:
    theirs = beside(pyg.RGCNConv(IN_DIM, OUT_DIM, 3, root_weight=False), nn.Linear(IN_DIM, OUT_DIM, bias=False))
    same = {"maps": "conv.weight", "own.weight": "linear.weight", "own.bias": "conv.bias"}

    def call(theirs: Any, x: Tensor, topology: Topology) -> Tensor:
        return theirs["conv"](x, edge_index(topology), topology.edge_data["type"]) + theirs["linear"](x)

    return Twin(zoo.RGCN(IN_DIM, OUT_DIM, 3), theirs, same, call)


DIMS = (IN_DIM, OUT_DIM)
ATTENTION = {
    "gat": (zoo.GAT, pyg.GATConv),
    "gatv2": (zoo.GATv2, pyg.GATv2Conv),
    "transformer": (zoo.TransformerConv, pyg.TransformerConv),
}
TWINS: dict[str, Callable[[], Twin]] = {
    "commnet": lambda: Twin(zoo.CommNet(*DIMS), pyg.GraphConv(*DIMS), {"own": "lin_root", "heard": "lin_rel"}),
    "gcn": lambda: Twin(
        zoo.GCN(*DIMS), pyg.GCNConv(*DIMS), {"linear.weight": "lin.weight", "linear.bias": "bias"}, weighted
    ),
    "sage": lambda: Twin(zoo.SAGE(*DIMS), pyg.SAGEConv(*DIMS), {"own": "lin_r", "neighbours": "lin_l"}),
    "ggnn": lambda: Twin(
        zoo.GGNN(IN_DIM, 1), pyg.GatedGraphConv(IN_DIM, num_layers=1), {"maps": "weight", **OF_GRU}
    ),
    "edge_conv": lambda: Twin(zoo.EdgeConv(*DIMS), pyg.EdgeConv(nn.Linear(2 * IN_DIM, OUT_DIM)), {"linear": "nn"}),
    "gin": lambda: of_mlp(zoo.GIN(*DIMS), pyg.GINConv),
    "gine": lambda: of_mlp(zoo.GINE(*DIMS, 2), pyg.GINEConv, edge_dim=2),
    **{twin.__name__: twin for twin in (residual_gcn, identity_residual_gcn, maxpool_gcn, gated_gcn, pna, rgcn)},
    **{
        f"{name}, concatenated: {concat}": lambda name=name, concat=concat: Twin(
            ATTENTION[name][0](*DIMS, num_heads=HEADS, concat=concat),
            ATTENTION[name][1](*DIMS, heads=HEADS, concat=concat),
            OF_ATTENTION[name],
        )
        for name in ATTENTION
        for concat in (True, False)
    },
}


def with_edge_data(topology: Topology, *, types: int = 3) -> Topology:
    """The topology with weights, types and two features of every edge, in float64."""
    generator = torch.Generator().manual_seed(2)
    return topology.with_edge_data(
        weight=topology.edge_data["weight"].double(),
        type=torch.randint(0, types, (topology.num_edges,), generator=generator),
        attr=torch.randn(topology.num_edges, 2, dtype=torch.float64, generator=generator),
    )


def copied(pairs: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Random values in both, in PyG's shape; all float64."""
    pairs = list(pairs)
    for ours, theirs in pairs:
        ours.data = torch.randn(ours.shape, dtype=torch.float64)
        theirs.data = ours.data.reshape(theirs.shape).clone()
    return pairs


@pytest.mark.parametrize("name", odd_topologies())
@pytest.mark.parametrize("twin", TWINS)
def test_layer_equals_pyg(twin: str, name: str) -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        found = TWINS[twin]()
    finally:
        torch.set_default_dtype(torch.float32)
    layer, pairs = found.ours, copied(found.pairs())
    topology = with_edge_data(odd_topologies()[name], types=1 if twin == "ggnn" else 3)
    x = torch.randn(topology.num_src, IN_DIM, dtype=torch.float64, requires_grad=True)
    x_twin = x.detach().clone().requires_grad_()

    prepared = layer.prepare(Graph(topology=topology, features=x))
    actual, expected = layer(prepared.topology, x), found.call(found.theirs, x_twin, topology)

    assert_close(actual, expected)
    upstream = torch.randn_like(expected)
    leaves = zip((x, x_twin), *pairs, strict=True)
    mine, other = (
        torch.autograd.grad(out, each, upstream, materialize_grads=True)
        for out, each in zip((actual, expected), leaves, strict=True)
    )
    # Some gradients are zero but for rounding (a softmax over one edge), so all are held to the largest.
    for ours, theirs in zip(mine, other, strict=True):
        assert_close(ours, theirs.reshape(ours.shape), scale=largest(*other))


@pytest.mark.parametrize("name", odd_topologies())
@pytest.mark.parametrize("teleport", [0.0, 0.2])
def test_propagated_rows_are_those_of_sgc_and_appnp(teleport: float, name: str) -> None:
    torch.manual_seed(0)
    topology = with_edge_data(odd_topologies()[name])
    x = torch.randn(topology.num_src, IN_DIM, dtype=torch.float64)
    edges, weight = edge_index(topology), topology.edge_data["weight"]
    sgc, appnp = pyg.SGConv(IN_DIM, OUT_DIM, K=3).double(), pyg.APPNP(K=3, alpha=teleport)
    bias_dim = 0 if teleport else OUT_DIM
    encoder = nn.Linear(IN_DIM, OUT_DIM, bias=False)
    ours = zoo.Propagated(encoder, None, hops=3, teleport=teleport, bias_dim=bias_dim).double()
    copied([(encoder.weight, sgc.lin.weight), *([] if ours.bias is None else [(ours.bias, sgc.lin.bias)])])
    prepared = ours.prepare(Graph(topology=topology, features=x))
    expected = appnp(encoder(x), edges, weight) if teleport else sgc(x, edges, weight)
    actual = ours(prepared.hops(3), x)
    assert_close(actual, expected)


@pytest.mark.parametrize("name", odd_topologies())
def test_attention_weights_are_pygs(name: str) -> None:
    torch.manual_seed(0)
    twin = Twin(zoo.GATv2(*DIMS, num_heads=HEADS), pyg.GATv2Conv(*DIMS, heads=HEADS), OF_ATTENTION["gatv2"])
    copied(twin.pairs())
    ours, theirs = twin.ours, twin.theirs
    topology = zoo.GATv2.prepare(Graph(topology=odd_topologies()[name])).topology
    x = torch.randn(topology.num_src, IN_DIM, dtype=torch.float64)
    _, (edges, expected) = theirs(x, edge_index(topology), return_attention_weights=True)
    found = zoo.attention_weights(ours, topology, x)

    def order(ends: Tensor) -> Tensor:
        return torch.argsort(ends[1] * topology.num_src + ends[0], stable=True)

    assert_close(found[order(edge_index(topology))], expected.detach()[order(edges)])

"""Every layer that PyG has as well: the same outputs and all the same gradients, with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    APPNP,
    EdgeConv as PygEdgeConv,
    GATConv,
    GatedGraphConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    GraphConv,
    PNAConv,
    ResGatedGraphConv,
    RGCNConv,
    SAGEConv,
    SGConv,
    TransformerConv as PygTransformerConv,
)

from sagann.graph import Graph, Topology
from sagann.nn import (
    GAT,
    GCN,
    GGNN,
    GIN,
    GINE,
    PNA,
    RGCN,
    SAGE,
    CommNet,
    EdgeConv,
    GatedGCN,
    GATv2,
    MaxPoolGCN,
    Propagated,
    ResidualGCN,
    TransformerConv,
    attention_weights,
)
from sagann.saga import SagaLayer
from tests.graphs import edge_index, odd_topologies
from tests.tolerances import assert_close, largest

pytestmark = pytest.mark.peers

IN_DIM, OUT_DIM, HEADS = 6, 4, 3
# Pairs of (our parameter, PyG's); a pair may carry a view, so that a part of a parameter is compared.
Twin = tuple[SagaLayer, Callable[[Tensor, Topology], Tensor], list[tuple[Tensor, Tensor]]]


def linear_pairs(ours: nn.Linear, theirs: nn.Module) -> list[tuple[Tensor, Tensor]]:
    pairs = [(ours.weight, theirs.weight)]
    return pairs if ours.bias is None else [*pairs, (ours.bias, theirs.bias)]


def commnet() -> Twin:
    ours, theirs = CommNet(IN_DIM, OUT_DIM), GraphConv(IN_DIM, OUT_DIM)
    pairs = linear_pairs(ours.own, theirs.lin_root) + linear_pairs(ours.heard, theirs.lin_rel)
    return ours, lambda x, t: theirs(x, edge_index(t)), pairs


def gcn() -> Twin:
    ours, theirs = GCN(IN_DIM, OUT_DIM), GCNConv(IN_DIM, OUT_DIM)
    pairs = [(ours.linear.weight, theirs.lin.weight), (ours.linear.bias, theirs.bias)]
    return ours, lambda x, t: theirs(x, edge_index(t), t.edge_data["weight"]), pairs


def residual_gcn() -> Twin:
    ours, convolution = ResidualGCN(IN_DIM, OUT_DIM), GCNConv(IN_DIM, OUT_DIM)
    shortcut = nn.Linear(IN_DIM, OUT_DIM, bias=False)
    pairs = [(ours.linear.weight, convolution.lin.weight), (ours.linear.bias, convolution.bias)]
    pairs += linear_pairs(ours.shortcut, shortcut)

    def twin(x: Tensor, t: Topology) -> Tensor:
        return torch.relu(convolution(x, edge_index(t), t.edge_data["weight"])) + shortcut(x)

    return ours, twin, pairs


def identity_residual_gcn() -> Twin:
    ours, convolution = ResidualGCN(IN_DIM, IN_DIM, activated=False), GCNConv(IN_DIM, IN_DIM)
    pairs = [(ours.linear.weight, convolution.lin.weight), (ours.linear.bias, convolution.bias)]
    return ours, lambda x, t: convolution(x, edge_index(t), t.edge_data["weight"]) + x, pairs


def maxpool_gcn() -> Twin:
    ours = MaxPoolGCN(IN_DIM, OUT_DIM)
    theirs = SAGEConv(IN_DIM, OUT_DIM, aggr="max", project=True, root_weight=False)
    pairs = linear_pairs(ours.pool, theirs.lin) + linear_pairs(ours.linear, theirs.lin_l)
    return ours, lambda x, t: theirs(x, edge_index(t)), pairs


def gated_gcn() -> Twin:
    ours = GatedGCN(IN_DIM, OUT_DIM)
    theirs, out = ResGatedGraphConv(IN_DIM, IN_DIM, root_weight=False, bias=False), nn.Linear(IN_DIM, OUT_DIM)
    # PyG sends W_V h_v along the edge; the paper sends h_v itself.
    theirs.lin_value.weight.data, theirs.lin_value.bias.data = torch.eye(IN_DIM), torch.zeros(IN_DIM)
    theirs.lin_key.bias.data.zero_()
    pairs = [(ours.gate_dst.weight, theirs.lin_key.weight)]
    pairs += linear_pairs(ours.gate_src, theirs.lin_query) + linear_pairs(ours.linear, out)
    return ours, lambda x, t: out(theirs(x, edge_index(t))), pairs


def ggnn() -> Twin:
    ours, theirs = GGNN(IN_DIM, 1), GatedGraphConv(IN_DIM, num_layers=1)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    pairs = [(ours.maps, theirs.weight), *((getattr(ours.gru, name), getattr(theirs.rnn, name)) for name in names)]
    return ours, lambda x, t: theirs(x, edge_index(t)), pairs


def gin() -> Twin:
    ours = GIN(IN_DIM, OUT_DIM)
    mlp = nn.Sequential(nn.Linear(IN_DIM, OUT_DIM), nn.ReLU(), nn.Linear(OUT_DIM, OUT_DIM))
    theirs = GINConv(mlp, train_eps=True)
    ours.eps.data.fill_(0.25)
    pairs = [(ours.eps, theirs.eps), *zip(ours.mlp.parameters(), mlp.parameters(), strict=True)]
    return ours, lambda x, t: theirs(x, edge_index(t)), pairs


def gat(concat: bool = True) -> Twin:
    ours = GAT(IN_DIM, OUT_DIM, num_heads=HEADS, concat=concat)
    theirs = GATConv(IN_DIM, OUT_DIM, heads=HEADS, concat=concat)
    pairs = [(ours.project.weight, theirs.lin.weight), (ours.bias, theirs.bias)]
    pairs += [(ours.attend_src, theirs.att_src), (ours.attend_dst, theirs.att_dst)]
    return ours, lambda x, t: theirs(x, edge_index(t)), pairs


def sage() -> Twin:
    ours, theirs = SAGE(IN_DIM, OUT_DIM), SAGEConv(IN_DIM, OUT_DIM)
    pairs = linear_pairs(ours.own, theirs.lin_r) + linear_pairs(ours.neighbours, theirs.lin_l)
    return ours, lambda x, t: theirs(x, edge_index(t)), pairs


def gatv2(concat: bool = True) -> Twin:
    ours = GATv2(IN_DIM, OUT_DIM, num_heads=HEADS, concat=concat)
    theirs = GATv2Conv(IN_DIM, OUT_DIM, heads=HEADS, concat=concat)
    pairs = linear_pairs(ours.of_src, theirs.lin_l) + linear_pairs(ours.of_dst, theirs.lin_r)
    pairs += [(ours.attend, theirs.att), (ours.bias, theirs.bias)]
    return ours, lambda x, t: theirs(x, edge_index(t)), pairs


def transformer(concat: bool = True) -> Twin:
    ours = TransformerConv(IN_DIM, OUT_DIM, num_heads=HEADS, concat=concat)
    theirs = PygTransformerConv(IN_DIM, OUT_DIM, heads=HEADS, concat=concat)
    names = {"query": "lin_query", "key": "lin_key", "value": "lin_value", "own": "lin_skip"}
    pairs = [
        pair for our, their in names.items() for pair in linear_pairs(getattr(ours, our), getattr(theirs, their))
    ]
    return ours, lambda x, t: theirs(x, edge_index(t)), pairs


def edge_conv() -> Twin:
    ours, theirs = EdgeConv(IN_DIM, OUT_DIM), PygEdgeConv(nn.Linear(2 * IN_DIM, OUT_DIM))
    return ours, lambda x, t: theirs(x, edge_index(t)), linear_pairs(ours.linear, theirs.nn)


def pna() -> Twin:
    histogram = torch.tensor([3, 5, 2, 1])
    mean = float((histogram * torch.log1p(torch.arange(4.0))).sum() / histogram.sum())
    ours = PNA(IN_DIM, OUT_DIM, mean)
    ways, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    theirs = PNAConv(IN_DIM, OUT_DIM, aggregators=ways, scalers=scalers, deg=histogram)
    # It is computed in float32 there.
    ours.mean_log_degree = theirs.aggr_module.avg_deg_log.detach().double().reshape(())
    pairs = linear_pairs(ours.message, theirs.pre_nns[0][0]) + linear_pairs(ours.mix, theirs.post_nns[0][0])
    return ours, lambda x, t: theirs(x, edge_index(t)), pairs + linear_pairs(ours.out, theirs.lin)


def rgcn() -> Twin:
    ours, theirs = RGCN(IN_DIM, OUT_DIM, 3), RGCNConv(IN_DIM, OUT_DIM, num_relations=3, root_weight=False)
    own = nn.Linear(IN_DIM, OUT_DIM, bias=False)
    pairs = [(ours.maps, theirs.weight), (ours.own.weight, own.weight), (ours.own.bias, theirs.bias)]
    return ours, lambda x, t: theirs(x, edge_index(t), t.edge_data["type"]) + own(x), pairs


def gine() -> Twin:
    ours = GINE(IN_DIM, OUT_DIM, 2)
    mlp = nn.Sequential(nn.Linear(IN_DIM, OUT_DIM), nn.ReLU(), nn.Linear(OUT_DIM, OUT_DIM))
    theirs = GINEConv(mlp, train_eps=True, edge_dim=2)
    ours.eps.data.fill_(0.25)
    pairs = [(ours.eps, theirs.eps), *linear_pairs(ours.of_edge, theirs.lin)]
    pairs += zip(ours.mlp.parameters(), mlp.parameters(), strict=True)
    return ours, lambda x, t: theirs(x, edge_index(t), t.edge_data["attr"]), pairs


GCNS = (commnet, gcn, residual_gcn, identity_residual_gcn, maxpool_gcn, gated_gcn, ggnn, gin, sage)
ATTENTION = (gat, gatv2, transformer)
TWINS: dict[str, Callable[[], Twin]] = {
    **{twin.__name__: twin for twin in (*GCNS, *ATTENTION, edge_conv, pna, rgcn, gine)},
    **{f"{twin.__name__} averaged": partial(twin, concat=False) for twin in ATTENTION},
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
        layer, reference, pairs = TWINS[twin]()
    finally:
        torch.set_default_dtype(torch.float32)
    pairs = copied(pairs)
    topology = with_edge_data(odd_topologies()[name], types=1 if twin == "ggnn" else 3)
    x = torch.randn(topology.num_src, IN_DIM, dtype=torch.float64, requires_grad=True)
    x_twin = x.detach().clone().requires_grad_()

    prepared = layer.prepare(Graph(topology=topology, features=x))
    actual, expected = layer(prepared.topology, x), reference(x_twin, topology)

    assert_close(actual, expected)
    upstream = torch.randn_like(expected)
    leaves = zip((x, x_twin), *pairs, strict=True)
    mine, other = (
        torch.autograd.grad(out, each, upstream, materialize_grads=True)
        for out, each in zip((actual, expected), leaves, strict=True)
    )
    assert len(pairs) == len(list(layer.parameters()))
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
    sgc, appnp = SGConv(IN_DIM, OUT_DIM, K=3).double(), APPNP(K=3, alpha=teleport)
    bias_dim = 0 if teleport else OUT_DIM
    encoder = nn.Linear(IN_DIM, OUT_DIM, bias=False)
    ours = Propagated(encoder, None, hops=3, teleport=teleport, bias_dim=bias_dim).double()
    copied([(encoder.weight, sgc.lin.weight), *([] if ours.bias is None else [(ours.bias, sgc.lin.bias)])])
    prepared = ours.prepare(Graph(topology=topology, features=x))
    expected = appnp(encoder(x), edges, weight) if teleport else sgc(x, edges, weight)
    actual = ours(prepared.hops(3), x)
    assert_close(actual, expected)


@pytest.mark.parametrize("name", odd_topologies())
def test_attention_weights_are_pygs(name: str) -> None:
    torch.manual_seed(0)
    ours, theirs = GATv2(IN_DIM, OUT_DIM, num_heads=HEADS), GATv2Conv(IN_DIM, OUT_DIM, heads=HEADS)
    pairs = linear_pairs(ours.of_src, theirs.lin_l) + linear_pairs(ours.of_dst, theirs.lin_r)
    copied([*pairs, (ours.attend, theirs.att), (ours.bias, theirs.bias)])
    topology = GATv2.prepare(Graph(topology=odd_topologies()[name])).topology
    x = torch.randn(topology.num_src, IN_DIM, dtype=torch.float64)
    _, (edges, expected) = theirs(x, edge_index(topology), return_attention_weights=True)
    found = attention_weights(ours, topology, x)

    def order(ends: Tensor) -> Tensor:
        return torch.argsort(ends[1] * topology.num_src + ends[0], stable=True)

    assert_close(found[order(edge_index(topology))], expected.detach()[order(edges)])

"""docs/layers.md runs as printed, its layers are PyG's: values and gradients, in memory and streamed, and its model is sampled as well."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sagann.graph import Graph, Topology
from sagann.nn import GNN
from sagann.plan import equal_vertices
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.loading import MiniBatches
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import using_engine
from tests.graphs import edge_index, random_topology, rows
from tests.tolerances import assert_close, largest

PAGE = Path(__file__).parents[2] / "docs" / "layers.md"

Pair = tuple[nn.Module, nn.Module, dict[str, str], str]
"Our layer, PyG's, which parameter of ours is which of theirs, and the edge data that theirs takes."


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page defines, after it has run."""
    test = doctest.DocTestParser().get_doctest(PAGE.read_text(), {}, PAGE.name, str(PAGE), 0)
    outcome = doctest.DocTestRunner().run(test, clear_globs=False)
    assert outcome.failed == 0
    assert outcome.attempted > 15
    return test.globs


def graph() -> Topology:
    topology, generator = random_topology(50, 300), torch.Generator().manual_seed(1)
    attributes = torch.randn(topology.num_edges, 3, dtype=torch.float64, generator=generator)
    types = torch.randint(0, 4, (topology.num_edges,), generator=generator)
    return topology.with_edge_data(attr=attributes, type=types)


def edge_conv(page: dict[str, Any], pyg: Any) -> Pair:
    ours = page["EdgeConv"](4, 6)
    return ours, pyg.EdgeConv(ours.nn, aggr="max"), {name: name for name, _ in ours.named_parameters()}, ""


def gat_v2(page: dict[str, Any], pyg: Any) -> Pair:
    parts = {"src": "lin_l", "dst": "lin_r", "edge": "lin_edge"}
    same = {f"{our}.{name}": f"{their}.{name}" for our, their in parts.items() for name in ("weight", "bias")}
    same |= {"att": "att", "bias": "bias"}
    theirs = pyg.GATv2Conv(4, 6, heads=2, edge_dim=3, add_self_loops=False)
    return page["GATv2"](4, 6, 2, 3), theirs, same, "attr"


def rgcn(page: dict[str, Any], pyg: Any) -> Pair:
    ours, theirs = page["RGCN"](4, 6, 4), pyg.RGCNConv(4, 6, num_relations=4, aggr="add")
    with torch.no_grad():
        # The other way round there.
        ours.root.weight.copy_(theirs.root.T)
    return ours, theirs, {"weight": "weight", "root.bias": "bias"}, "type"


def point_net(page: dict[str, Any], pyg: Any) -> Pair:
    class Ours(page["PointNet"]):
        def forward(self, topology: Topology, x: torch.Tensor) -> torch.Tensor:
            return super().forward(topology, {"x": x[:, 3:], "pos": x[:, :3]})

    class Theirs(nn.Module):
        def __init__(self, local_nn: nn.Module) -> None:
            super().__init__()
            self.layer = pyg.PointNetConv(local_nn=local_nn, add_self_loops=False)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return self.layer(x[:, 3:], x[:, :3], edges)

    ours = Ours(1, 6)
    same = {name: name.replace("nn.", "layer.local_nn.", 1) for name, _ in ours.named_parameters()}
    return ours, Theirs(ours.nn), same, ""


def pna(page: dict[str, Any], pyg: Any) -> Pair:
    ways = ["mean", "min", "max", "std"]
    theirs = pyg.PNAConv(4, 6, aggregators=ways, scalers=["identity"], deg=torch.ones(9, dtype=torch.int64))
    parts = {"pre": "pre_nns.0.0", "post": "post_nns.0.0", "lin": "lin"}
    same = {f"{our}.{name}": f"{their}.{name}" for our, their in parts.items() for name in ("weight", "bias")}
    return page["PNA"](4, 6), theirs, same, ""


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("pair", [edge_conv, gat_v2, rgcn, pna, point_net])
def test_a_layer_of_the_page_is_pygs(pair: Callable[..., Pair], streams: bool, page: dict[str, Any]) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    topology, engine = graph(), CompiledEngine()
    ours, theirs, same, data = pair(page, pyg)
    ours, theirs = ours.double(), theirs.double()
    parameters, known = dict(ours.named_parameters()), dict(theirs.named_parameters())
    same = {name: known_as for name, known_as in same.items() if name in parameters}
    with torch.no_grad():
        for name, known_as in same.items():
            parameters[name].copy_(known[known_as].reshape(parameters[name].shape))

    x = torch.randn(topology.num_src, 4, dtype=torch.float64, requires_grad=True)
    expected = theirs(x, edge_index(topology), *([topology.edge_data[data]] if data else []))
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [x, *(known[known_as] for known_as in same.values())], upstream)
    with using_engine(engine):
        if streams:
            out = StreamedModel(GNN([ours]), [topology], equal_vertices(topology.num_dst, 3))(x)
        else:
            out = ours(topology, x)
        found = torch.autograd.grad(out, [x, *(parameters[name] for name in same)], upstream)
    assert_close(out, expected)
    for ours_, theirs_ in zip(found, wanted, strict=True):
        assert_close(ours_, theirs_.reshape(ours_.shape), scale=largest(*wanted))
    if not streams:
        (program,) = engine.programs_of(ours)
        assert program.edges.function is not None, program.edges.why_not


def test_the_model_of_the_page_is_the_same_in_memory_streamed_and_sampled(page: dict[str, Any]) -> None:
    torch.manual_seed(0)
    topology = graph()
    x = rows(topology)
    model = page["Jumping"](4, 3, hidden_dim=8).double()
    with torch.no_grad():
        model([topology] * 3, x)  # running means that are not those of the beginning
        model.eval()
        expected = model([topology] * 3, x)
        streamed = StreamedModel(model, [topology] * 3, equal_vertices(topology.num_dst, 3))(x)
        seeds = torch.tensor([7, 3, 30])
        whole = Graph(topology=topology, features=x)
        (batch,) = MiniBatches(whole, fanouts=[-1] * 3, batch_size=3, seeds=seeds, shuffle=False)
        sampled = model(batch.blocks, batch.features)
    assert batch.blocks[0].num_src > batch.blocks[-1].num_dst == 3
    assert_close(streamed, expected)
    assert_close(sampled, expected[batch.seeds])

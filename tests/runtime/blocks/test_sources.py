"""Sources: edges and constants are read where they lie, where the host is the memory that computes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.graph import Graph, Topology, declare_constant
from sagann.kernels.packed import packed_bytes
from sagann.nn import GCN, GNN, ModelConfig, build_model
from sagann.plan import equal_vertices
from sagann.plan.epoch import Planned
from sagann.plan.fit import hop_sizes
from sagann.plan.grid import ChunkGrid
from sagann.plan.hops import CSC, CSR
from sagann.plan.intervals import PartIntervals
from sagann.plan.selection import ALWAYS, NEVER
from sagann.plan.steps import ALL, UNLIMITED, Block, Move
from sagann.runtime.blocks.chunks import Chunks, CutHops
from sagann.runtime.blocks.host import DiskHost, RamHost
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.streaming.stream import foretell
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, SagaLayer
from sagann.storage import open_graph, save_graph
from tests.graphs import labelled_graph, random_topology
from tests.runtime.streams import assert_all_close, dense, in_double

COUNT = 4


def prepared(name: str) -> tuple[nn.Module, Graph, Tensor]:
    torch.manual_seed(0)
    graph = labelled_graph()
    model = build_model(ModelConfig(model=name, hidden=8, heads=2, layers=2, dropout=0.0), graph).double()
    graph = in_double(model.prepare(graph))
    return model, graph, declare_constant(graph.features.double())


def streamed_of(model: nn.Module, graph: Graph, **options: Any) -> StreamedModel:
    return StreamedModel(model, graph.hops(model.num_hops), equal_vertices(graph.num_vertices, COUNT), **options)


def loads(planned: Planned) -> dict[Block, int]:
    return {
        each.block: each.num_bytes
        for each in (*planned.plan.operations, *planned.plan.staying)
        if isinstance(each, Move) and each.kind == "load"
    }


@pytest.mark.parametrize(
    ("name", "vertex_data"),
    [("gcn", {"gathered_default"}), ("gat", {"x"}), ("sage", {"x", "gathered_default"}), ("gated-gcn", set())],
)
def test_edges_and_constants_take_no_room_in_memory(name: str, vertex_data: set[str], tmp_path: Path) -> None:
    model, graph, x = prepared(name)
    found = loads(streamed_of(model, graph, budget_bytes=1 << 30).plan(x))
    here = {block for block, num_bytes in found.items() if not num_bytes}
    assert {block.name for block in here if block.kind == "value"} == vertex_data
    assert {block for block in here if block.kind != "value"} == {block for block in found if block.kind == "edges"}
    on_disk = loads(streamed_of(model, graph, budget_bytes=1 << 30, spill=tmp_path).plan(x))
    assert here <= set(on_disk)
    # Beside files, features that the caller has in memory are read there.
    assert {block.name for block, num_bytes in on_disk.items() if not num_bytes} == vertex_data & {"x"}
    # Without a budget nothing is copied, and everything counts.
    assert all(loads(streamed_of(model, graph, budget_bytes=UNLIMITED).plan(x)).values())


def test_features_that_are_not_contiguous_are_read_where_they_lie() -> None:
    model, graph, x = prepared("gat")
    # Rows of a wider tensor, one after the other with gaps.
    wide = torch.zeros(len(x), 2 * x.shape[1], dtype=x.dtype)
    wide[:, ::2] = x
    strided = declare_constant(wide[:, ::2])
    expected, upstream = dense(model, list(graph.hops(2)), x.clone().requires_grad_())
    del expected[1]
    streamed = streamed_of(model, graph, budget_bytes=1 << 30)
    for _ in range(2):
        out = streamed(strided)
        found = [out, *torch.autograd.grad(out, list(model.parameters()), upstream)]
        assert_all_close(found, expected)
    assert torch.equal(strided, x)


class Sliced(nn.Module):
    """Gives a view of what it gathers, or of its features."""

    num_hops = 1

    def __init__(self, *, of_x: bool) -> None:
        super().__init__()
        self.plain, self.of_x = SagaLayer(), of_x

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return x.view(-1, 2, 2) if self.of_x else self.plain(hops[0], x)[:, 1:]


@pytest.mark.parametrize("of_x", [False, True])
def test_a_loss_that_changes_its_rows_changes_nothing_else(of_x: bool) -> None:
    model, topology, x = Sliced(of_x=of_x).double(), random_topology(31, 200), torch.randn(31, 4).double()
    before = x.clone()
    streamed = StreamedModel(model, [topology], equal_vertices(31, COUNT), budget_bytes=1 << 30)
    with torch.no_grad():
        losses = [float(streamed.loss(x, lambda rows, _: rows.mul_(2).sum())) for _ in range(3)]
    assert losses == [losses[0]] * 3
    assert torch.equal(x, before)


def test_mapped_features_are_read_by_position(tmp_path: Path) -> None:
    graph = labelled_graph()
    save_graph(graph, tmp_path / "graph")
    stored = open_graph(tmp_path / "graph")
    model = build_model(ModelConfig(model="gat", hidden=8, heads=2, layers=2, dropout=0.0), graph)
    numbers = {}
    for each, x, in_place in ((graph, graph.features, True), (stored, stored.features, False)):
        streamed = streamed_of(model, each, budget_bytes=1 << 30)
        found = loads(streamed.plan(x))
        assert all((found[Block("value", "x", number)] == 0) == in_place for number in range(COUNT))
        foretold = loads(foretell(model, each, budget_bytes=1 << 30, folded=False, select="never"))
        assert (foretold[Block("value", "x", 0)] == 0) == in_place
        numbers[in_place] = streamed(x)
    assert torch.equal(numbers[True], numbers[False])


def test_a_chunk_that_is_viewed_stays_as_it_is() -> None:
    topology, bounds = labelled_graph().topology, (0, 20, 53)
    grid, chunks = (
        ChunkGrid(topology, bounds),
        Chunks(topology, PartIntervals.of_graph(bounds), RamHost(), 0, ALWAYS),
    )
    expected = {(chunk.src, chunk.dst): chunk.topology.indices.tolist() for chunk in grid.chunks()}
    for (src, dst), indices in expected.items():
        block = Block("edges", CSC, src, dst, 0)
        for _ in range(2):
            assert chunks.load(block).content().indices.tolist() == indices


def test_many_chunks_on_disk(tmp_path: Path) -> None:
    topology = random_topology(256, 8000)
    bounds = equal_vertices(256, 32)
    grid, chunks = (
        ChunkGrid(topology, bounds),
        Chunks(topology, PartIntervals.of_graph(bounds), DiskHost(tmp_path), 0),
    )
    assert len(chunks.size.edges) > 900
    first = 0
    for chunk in grid.chunks():
        read = chunks.load(Block("edges", CSC, chunk.src, chunk.dst, 0)).content()
        assert read.indices.tolist() == chunk.topology.indices.tolist()
        assert chunks.first_edge[chunk.src, chunk.dst] == first
        first += chunk.topology.num_edges


def cut_hops(hops: Sequence[Topology]) -> CutHops:
    return CutHops(
        hops,
        budget_bytes=1 << 20,
        host=RamHost(),
        cutting=None,
        grain=None,
        folder=None,
        selection=NEVER,
        numbers=count(),
    )


def test_chunks_are_kept_in_the_forms_that_their_passes_read() -> None:
    (topology,), square = GCN.prepare(labelled_graph()).hops(1), PartIntervals.of_graph((0, 20, 53))
    part = replace(square, undivided=frozenset([("value", "h")]))
    program = captured(GNN([GCN(8, 3)]), [topology], torch.empty(53, 8), x_is_constant=True)
    cut = cut_hops([topology])
    found = {}
    for name, given, of_constants in (("once", part, True), ("sides", part, False), ("square", square, False)):
        (chunks,) = cut.of(program, given, of_constants=of_constants).values()
        found[name] = set(chunks.size.edges)
        for form in (CSC, CSR):
            for src, dst in chunks.size.edges:
                kept = form in (CSC, CSR) if name == "square" else form == (CSR if dst == ALL else CSC)
                with nullcontext() if kept else pytest.raises(KeyError):
                    chunks.load(Block("edges", form, src, dst, 0))
    assert found["once"] == found["square"] == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert found["sides"] == {(ALL, 0), (ALL, 1), (0, ALL), (1, ALL)}


class Shifted(SagaLayer):
    """Its gradient reads one of two numbers of an edge."""

    edge_data = ("scale", "shift")

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src * edge.data["scale"].unsqueeze(-1) + edge.data["shift"].unsqueeze(-1)


@pytest.mark.parametrize("is_square", [True, False])
@pytest.mark.parametrize("name", ["ggnn", "rgcn", "shifted"])
def test_chunks_have_the_edge_data_that_passes_of_their_form_read(name: str, is_square: bool) -> None:
    read = {"ggnn": (set(), set()), "rgcn": ({"relation_weight"},) * 2, "shifted": ({"scale", "shift"}, {"scale"})}
    if name == "shifted":
        topology = random_topology(53, 300, types=3)
        given = {each: torch.rand(topology.num_edges) for each in ("scale", "shift", "unread")}
        model, topology = GNN([Shifted()]), topology.with_edge_data(**given)
    else:
        graph = labelled_graph()
        model = build_model(ModelConfig(model=name, hidden=8, layers=2, dropout=0.0), graph)
        topology = model.prepare(graph).topology
    part = PartIntervals.of_graph((0, 20, 53))
    part = part if is_square else replace(part, undivided=frozenset([("value", "h")]))
    width = 8 if name == "shifted" else graph.features.shape[1]
    hops = [topology] * model.num_hops
    program = captured(model, hops, torch.empty(53, width), x_is_constant=False)
    planned = hop_sizes(program, hops, part)
    for number, chunks in cut_hops(hops).of(program, part).items():
        for form, names in zip((CSC, CSR), read[name], strict=True):
            for src, dst in chunks.size.edges:
                if is_square or (dst == ALL) == (form == CSR):
                    edges = chunks.load(Block("edges", form, src, dst, number)).content()
                    assert set(edges.edge_data) == names
                    num_bytes = packed_bytes(
                        each.nbytes for each in (edges.indptr, edges.indices, *edges.edge_data.values())
                    )
                    for size in (chunks.size, planned[number]):
                        assert size.chunk_bytes(part.rows, src, dst, form) == num_bytes

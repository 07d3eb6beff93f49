"""Losses, gradients and logits of every model at 1, 2 and 3 workers; run by test_worker_part.py as a program of its own.

python -m tests.runtime.workers.exactness_driver FOLDER TYPE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import sagann
from sagann.compiler import CompilerOptions
from sagann.graph import Graph, Topology
from sagann.nn import GNN, ModelConfig, build_model
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.workers import Workers
from sagann.saga import NaiveEngine, using_engine
from sagann.saga.engine import Engine
from sagann.train.contract import Contract
from sagann.train.epoch_source import WholeGraph
from sagann.train.predictor import Predictor
from tests.graphs import labelled_graph
from tests.runtime.in_memory.test_batch_norm import OfEdges, OfVertices
from tests.runtime.workers.epochs import Numbers, trained
from tests.runtime.workers.processes import run_workers
from tests.train.runs import sparse_graph, values_graph
from tests.zoo import DISTINCT, TYPED


class GatedLayer(sagann.SagaLayer):
    """The layer of the README."""

    accumulator = "sum"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.gate_dst = nn.Linear(in_dim, in_dim, bias=False)
        self.gate_src = nn.Linear(in_dim, in_dim)
        self.out = nn.Linear(in_dim, out_dim)

    def apply_edge(self, edge: sagann.Edge) -> Tensor:
        return torch.sigmoid(self.gate_dst(edge.dst) + self.gate_src(edge.src)) * edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.out(accum)


class Several(sagann.SagaLayer):
    """Several accumulators, and edges that are dropped at random."""

    accumulator = ("mean", "max", "std")

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * in_dim, out_dim)
        self.out = nn.Linear(3 * out_dim, out_dim)

    def apply_edge(self, edge: sagann.Edge) -> Tensor:
        row = torch.relu(self.inner(torch.cat([edge.src, edge.dst], -1)))
        return torch.dropout(row, 0.3, self.training)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.out(accum)


def graph_of(ends: list[tuple[int, int]], num_vertices: int) -> Graph:
    generator = torch.Generator().manual_seed(3)
    src, dst = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T
    return Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=num_vertices),
        features=torch.randn(num_vertices, 8, generator=generator),
        labels=torch.arange(num_vertices) % 3,
        num_classes=3,
        splits={"train": torch.arange(num_vertices) % 4 == 0},
    )


def own() -> GNN:
    """Two layers of the README's, with dropout."""
    return GNN([GatedLayer(8, 16), GatedLayer(16, 3)], dropout=0.2)


def several() -> GNN:
    """Two layers with several accumulators."""
    return GNN([Several(8, 16), Several(16, 3)])


def normed() -> GNN:
    """Layers with BatchNorms between them, and in ApplyVertex."""
    layers = [GatedLayer(8, 16), OfVertices(16, 6), GatedLayer(6, 3)]
    return GNN(layers, norms=[nn.BatchNorm1d(16, momentum=None), nn.BatchNorm1d(6, affine=False)], dropout=0.2)


def normed_edges() -> GNN:
    """Layers with BatchNorms over edges, and one between them."""
    return GNN([OfEdges(8, 8), OfEdges(8, 3)], norms=[nn.BatchNorm1d(8)])


def cases() -> Iterator[tuple[str, Callable[[], nn.Module], Graph, Engine]]:
    compiled = CompiledEngine()
    for name in DISTINCT:
        graph = labelled_graph(types=3 if name in TYPED else 0)
        options = {"attention_dropout": 0.3} if name == "gat" else {}
        config = ModelConfig(
            model=name, hidden=8, layers=3 if "gcn" in name else 2, dropout=0.5, model_options=options
        )
        yield name, lambda config=config, graph=graph: build_model(config, graph), graph, compiled
    yield "README", own, labelled_graph(), compiled
    yield "README, naive", own, labelled_graph(), NaiveEngine()
    yield "README, lean", own, labelled_graph(), CompiledEngine(lean=True)
    yield "README, not fused", own, labelled_graph(), CompiledEngine(options=CompilerOptions(fuse=False))
    yield (
        "README, in tiles",
        own,
        labelled_graph(),
        CompiledEngine(tile_edges=64, options=CompilerOptions(hoist=False)),
    )
    yield "several", several, labelled_graph(), compiled
    yield "batch norms", normed, labelled_graph(), compiled
    yield "batch norms, naive", normed, labelled_graph(), NaiveEngine()
    yield "batch norms of edges", normed_edges, labelled_graph(), compiled
    hub = graph_of([(vertex, 0) for vertex in range(1, 37)], 40)
    yield "one hub, empty parts", own, hub, compiled
    yield "one hub, GCN", lambda: build_model(ModelConfig(hidden=8), hub), hub, compiled
    # The first worker reads its own vertices alone, and sends rows to the second one.
    ends = [(int(src), dst) for dst in range(40) for src in torch.arange(12) * 37 % (20 if dst < 20 else 40)]
    apart = graph_of(ends, 40)
    apart = apart.with_topology(apart.topology.with_edge_data(type=torch.arange(apart.num_edges) % 3))
    apart = replace(apart, num_edge_types=3)
    config = ModelConfig(model="rgcn", hidden=8)
    yield "no halo at one worker", lambda: build_model(config, apart), apart, compiled
    isolated = graph_of([(0, 9), (9, 0), (1, 9)], 12)
    yield "isolated vertices", own, isolated, compiled
    yield "no edges", own, graph_of([], 5), compiled
    yield "batch norms, fewer vertices than workers", normed, graph_of([(0, 1), (1, 0)], 2), compiled
    yield "fewer vertices than workers", own, graph_of([(0, 1), (1, 0)], 2), compiled
    values = values_graph(40, num_targets=2)
    yield "regression", lambda: build_model(ModelConfig(hidden=8), values), values, compiled
    sparse = sparse_graph()
    for encoder in ("linear", "none"):
        config = ModelConfig(hidden=8, dropout=0.5, encoder=encoder)
        yield f"sparse features, encoder {encoder}", lambda c=config: build_model(c, sparse), sparse, compiled


def numbers_of(model: nn.Module, graph: Graph, workers: Workers | None) -> Numbers:
    """Losses, gradients, logits and embeddings of some epochs, with steps of gradient descent between them."""
    predictor = Predictor(model, Contract.of(graph), device=torch.device("cpu"), workers=workers)
    prepared = predictor.prepare(graph)
    source = WholeGraph(predictor, prepared)
    torch.manual_seed(11)
    predictor.logits(prepared)
    found, step = trained(model, source)
    found["embeddings"] = predictor.embed(prepared)
    found["edges"] = torch.tensor(step.num_edges, dtype=torch.float64)
    return found


def all_numbers(
    workers: Workers | None, dtype: torch.dtype, names: Collection[str] | None = None
) -> dict[str, Numbers]:
    """What every case of these names gives in a type; every case by default."""
    found = {}
    for name, build, graph, engine in cases():
        if names is not None and name not in names:
            continue
        torch.manual_seed(5)
        model = build().to(dtype)
        graph = replace(graph, features=graph.features.to(dtype))
        with using_engine(engine):
            found[name] = numbers_of(model, graph, workers)
    return found


AGAIN = ("gcn", "gat", "README", "README, in tiles", "several", "one hub, empty parts")
"Cases that run twice."
RUNS: dict[torch.dtype, dict[str, tuple[int, Collection[str] | None]]] = {
    torch.float32: {"2, first": (2, None), "2, again": (2, AGAIN)},
    torch.float64: {"3": (3, None), "4, some": (4, AGAIN)},
}
"For each type, the number of workers and the cases of each run; None for every case."


def main(folder: Path, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    # What is compiled here, every fork has.
    torch.save(all_numbers(None, dtype), folder / "alone.pt")
    for name, (size, names) in RUNS[dtype].items():

        def save(workers: Workers, name: str = name, given: Collection[str] | None = names) -> None:
            torch.save(all_numbers(workers, dtype, given), folder / f"{name}, worker {workers.rank}.pt")

        run_workers(save, size)


if __name__ == "__main__":
    main(Path(sys.argv[1]), getattr(torch, sys.argv[2]))

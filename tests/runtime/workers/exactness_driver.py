"""Numbers of workers, in memory and streamed, beside those of one process; run by test_worker_part.py as a program of its own.

python -m tests.runtime.workers.exactness_driver FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import sagann
from sagann.compiler import CompilerOptions
from sagann.errors import InputError, SagannError
from sagann.graph import Graph, Topology
from sagann.nn import GNN, ModelConfig, build_model
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.streaming.stream import stream
from sagann.runtime.workers import WorkerPart, Workers
from sagann.saga import using_engine
from sagann.saga.engine import Engine
from sagann.train.contract import Contract
from sagann.train.epoch_source import WholeGraph
from sagann.train.predictor import Predictor, PreparedGraph
from sagann.train.streamed import Streaming
from tests.graphs import labelled_graph
from tests.plain import auto_dialect
from tests.runtime.in_memory.test_batch_norm import OfEdges, OfVertices
from tests.runtime.workers.processes import join, run_workers, start_workers
from tests.tolerances import largest
from tests.train.runs import sparse_graph

Numbers = dict[str, Tensor]
EPOCHS = 2
TIMEOUT_S = 20.0
CPU = torch.device("cpu")


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
    """Several accumulators, two of which keep edges, and edges that are dropped at random."""

    accumulator = ("mean", "max", "std")

    def __init__(self, in_dim: int, out_dim: int, dropout: float = 0.3) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner = nn.Linear(2 * in_dim, out_dim)
        self.out = nn.Linear(3 * out_dim, out_dim)

    def apply_edge(self, edge: sagann.Edge) -> Tensor:
        row = torch.relu(self.inner(torch.cat([edge.src, edge.dst], -1)))
        return torch.dropout(row, self.dropout, self.training) if self.dropout else row

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.out(accum)


class Jumping(nn.Module):
    """What one layer gathers is what the next one reads, and the last stage reads the results of all of them."""

    num_hops = 3

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 6), nn.Linear(12, 3)
        self.layers = nn.ModuleList([sagann.SagaLayer(), sagann.SagaLayer(), sagann.SagaLayer()])

    def forward(self, hops: Sequence[sagann.Topology], x: Tensor) -> Tensor:
        rows = [torch.tanh(self.before(x)) / 8]
        for layer, hop in zip(self.layers, hops, strict=True):
            rows.append(layer(hop, rows[-1]) / 8)
        return self.after(torch.cat([rows[1] + rows[2], rows[3]], -1))


class Twice(nn.Module):
    """Rows are gathered as they are, and with a mean over all vertices between."""

    num_hops = 2

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 6), nn.Linear(12, 3)
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.ModuleList([sagann.SagaLayer(), sagann.SagaLayer()])

    def forward(self, hops: Sequence[sagann.Topology], x: Tensor) -> Tensor:
        rows = torch.tanh(self.before(x))
        pairs = zip(self.layers, hops, (self.norm(rows), rows), strict=True)
        return self.after(torch.cat([layer(hop, given) / 8 for layer, hop, given in pairs], -1))


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
    return GNN([GatedLayer(8, 16), GatedLayer(16, 3)], dropout=0.2)


def several(dropout: float = 0.3) -> GNN:
    return GNN([Several(8, 16, dropout), Several(16, 3, dropout)])


def normed(dropout: float = 0.2) -> GNN:
    """Layers with BatchNorms between them, and in ApplyVertex."""
    layers = [GatedLayer(8, 16), OfVertices(16, 6), GatedLayer(6, 3)]
    return GNN(layers, norms=[nn.BatchNorm1d(16, momentum=None), nn.BatchNorm1d(6, affine=False)], dropout=dropout)


class Case(NamedTuple):
    """A model on a graph; tests/exact tries the models of the zoo, and graphs that are odd."""

    name: str
    build: Callable[[], nn.Module]
    graph: Graph
    engine: Engine
    streams: bool = False
    "Whether streamed workers try it as well."


def cases() -> Iterator[Case]:
    compiled, graph = CompiledEngine(), labelled_graph()
    gat = ModelConfig(model="gat", hidden=8, layers=3, dropout=0.5)
    yield Case("gat", partial(build_model, gat, graph), graph, compiled, streams=True)
    dropping = replace(gat, model_options={"attention_dropout": 0.3})
    yield Case("attention that is dropped", partial(build_model, dropping, graph), graph, compiled)
    yield Case("README, lean", own, graph, CompiledEngine(lean=True))
    yield Case("README, not fused", own, graph, CompiledEngine(options=CompilerOptions(fuse=False)))
    tiled = CompiledEngine(tile_edges=64, options=CompilerOptions(hoist=False))
    yield Case("README, in tiles", own, graph, tiled)
    yield Case("several, with edges that are dropped", several, graph, compiled)
    yield Case("several", partial(several, 0.0), graph, compiled, streams=True)
    yield Case("jumping", Jumping, graph, compiled, streams=True)
    yield Case("batch norms", normed, graph, compiled, streams=True)
    hub = graph_of([(vertex, 0) for vertex in range(1, 37)], 40)
    yield Case("empty parts, batch norms", normed, hub, compiled, streams=True)
    yield Case("empty parts, batch norms of edges", lambda: GNN([OfEdges(8, 3)]), hub, compiled, streams=True)
    # The first worker reads its own vertices alone, and sends rows to the second one.
    ends = [(int(src), dst) for dst in range(40) for src in torch.arange(12) * 37 % (20 if dst < 20 else 40)]
    apart = graph_of(ends, 40)
    apart = apart.with_topology(apart.topology.with_edge_data(type=torch.arange(apart.num_edges) % 3))
    apart = replace(apart, num_edge_types=3)
    rgcn = ModelConfig(model="rgcn", hidden=8)
    yield Case("no halo at one worker", partial(build_model, rgcn, apart), apart, compiled)
    yield Case("gathered twice, no halo at one worker", Twice, apart, compiled, streams=True)
    yield Case("fewer vertices than workers", normed, graph_of([(0, 1), (1, 0)], 2), compiled)
    sparse, config = sparse_graph(), ModelConfig(hidden=8, dropout=0.5, encoder="none")
    yield Case("sparse features without an encoder", partial(build_model, config, sparse), sparse, compiled)


AGAIN = ("gat", "several", "batch norms")
"Cases that are run twice: with softmax, accumulators that keep edges, means over all vertices."
RUNS = {
    "2, first": (2, False, None),
    "2, again": (2, False, AGAIN),
    "3": (3, False, ("fewer vertices than workers",)),
    "2 streamed": (2, True, ("gathered twice, no halo at one worker",)),
    "3 streamed, first": (3, True, None),
    "3 streamed, again": (3, True, AGAIN),
}
"Number of workers of each run, whether they stream, and its cases; None for every case."


def cases_of(run: str) -> list[Case]:
    """The cases of a run; every case of another name."""
    _, streams, names = RUNS.get(run, (1, False, None))
    return [case for case in cases() if case.streams >= streams and (names is None or case.name in names)]


def prepared_by(
    case: Case, workers: Workers | None, *, device: torch.device = CPU, dtype: torch.dtype = torch.float64
) -> tuple[Predictor, PreparedGraph]:
    torch.manual_seed(5)
    graph = replace(case.graph, features=case.graph.features.to(dtype))
    predictor = Predictor(case.build().to(dtype), Contract.of(graph), device=device, workers=workers)
    return predictor, predictor.prepare(graph)


def trained(predictor: Predictor, prepared: PreparedGraph) -> Numbers:
    """Losses and gradients of EPOCHS epochs, with steps of gradient descent between them, and logits."""
    model, source, found = predictor.model, WholeGraph(predictor, prepared), {}
    for epoch in range(EPOCHS):
        model.train()
        model.zero_grad()
        (step,) = source.steps(epoch + 1)
        loss = step.loss()
        loss.backward()
        loss, num_edges = step.complete(loss.detach(), step.num_edges)
        found[f"loss {epoch}"] = loss
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"{name} {epoch}"] = parameter.grad.clone()
                parameter.data -= 0.01 * parameter.grad
        found |= {f"{name} {epoch}": buffer.to(loss.dtype) for name, buffer in model.named_buffers()}
    found["logits"] = source.logits()
    found["edges"] = torch.tensor(num_edges, dtype=torch.float64)
    return found


def numbers_of(case: Case, workers: Workers | None, spill: Path | None = None) -> Numbers:
    """Losses, gradients and logits of some epochs; streamed where there is a spill folder."""
    with using_engine(case.engine):
        predictor, prepared = prepared_by(case, workers)
        if spill is not None:
            predictor.stream_within(Streaming(memory_bytes=budget_of(predictor, prepared.part), spill=spill))
        torch.manual_seed(11)
        predictor.try_out(prepared)
        torch.manual_seed(12)
        found = trained(predictor, prepared)
        if spill is not None:
            found["intervals"] = torch.tensor(len(predictor.runner(prepared).streamed().bounds) - 1)
            predictor.release()
    return found


def budget_of(predictor: Predictor, part: WorkerPart) -> int:
    """A part of the bytes that an epoch takes without cuts: less at each worker than at the one before."""
    model = predictor.model.train()
    whole = stream(model, part, budget_bytes=1 << 40, num_intervals=1)
    return max(2000, whole.plan(part.features, folded=True).plan.peak_bytes * 4 // (5 + part.workers.rank))


def require_same(found: Numbers, expected: Numbers, relative: float, at: object) -> None:
    """Require the same numbers, up to a part of the largest of their kind in any epoch."""
    assert list(found) == list(expected), at
    for key, value in found.items():
        kind = [expected[other] for other in expected if other.split()[-1] == key.split()[-1]]
        torch.testing.assert_close(
            value,
            expected[key],
            rtol=relative,
            atol=relative * max(1.0, largest(*kind)),
            msg=lambda text, key=key: f"{at}, {key}: {text}",
        )


def save_numbers(workers: Workers | None, folder: Path, run: str) -> None:
    spill = folder / "spill" if RUNS.get(run, (1, False, None))[1] else None
    found = {case.name: numbers_of(case, workers, spill) for case in cases_of(run)}
    torch.save(found, folder / (f"{run}, worker {workers.rank}.pt" if workers else f"{run}.pt"))


def refuse(workers: Workers, folder: Path) -> None:
    """The second worker's budget is too small; every worker ends with an error that names it."""
    predictor, prepared = prepared_by(next(cases()), workers)
    memory_bytes = 100 if workers.rank == 1 else 1 << 30
    predictor.stream_within(Streaming(memory_bytes=memory_bytes, spill=folder / "spill"))
    with pytest.raises(SagannError) as refused:
        predictor.try_out(prepared)
    assert isinstance(refused.value, InputError)
    (folder / f"refused-{workers.rank}.txt").write_text(str(refused.value))
    predictor.release()


def die(workers: Workers, folder: Path) -> None:
    """The second worker is killed in an epoch; the others' errors name it."""
    predictor, prepared = prepared_by(next(cases()), workers)
    streaming = Streaming(memory_bytes=1 << 30, spill=folder / "run")
    predictor.stream_within(streaming)
    source = WholeGraph(predictor, prepared)
    predictor.try_out(prepared)
    (step,) = source.steps(1)
    predictor.model.train()
    loss = step.loss()
    if workers.rank == 1:
        # Its blocks lie in its folder, between the forward and the backward.
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        loss.backward()
        step.complete(loss.detach(), step.num_edges)
    except SagannError as error:
        (folder / f"died-{workers.rank}.txt").write_text(str(error))
        raise
    finally:
        # The kernel frees the lock of the killed process' folder when the process has ended.
        time.sleep(0.5)
        predictor.release()


@auto_dialect("naive")
def main(folder: Path) -> None:
    torch.set_num_threads(1)
    # What is compiled here, every fork has.
    save_numbers(None, folder, "alone")
    for run, (size, _, _) in RUNS.items():
        run_workers(partial(save_numbers, folder=folder, run=run), size)
    run_workers(partial(refuse, folder=folder), 2)
    codes = join(start_workers(partial(die, folder=folder), 2, timeout_s=TIMEOUT_S))
    (folder / "codes.txt").write_text(" ".join(map(str, codes)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Numbers of streamed parts at 2 and 3 workers, beside those of one process; run by test_streamed_part.py as a program of its own.

python -m tests.runtime.workers.streamed_driver FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sagann
from sagann.errors import InputError, SagannError
from sagann.graph import Graph
from sagann.nn import GNN, ModelConfig, build_model
from sagann.runtime.streaming.stream import stream_part
from sagann.runtime.workers import WorkerPart, Workers
from sagann.train.contract import Contract
from sagann.train.epoch_source import WholeGraph
from sagann.train.predictor import Predictor
from sagann.train.streaming import Streaming
from tests.graphs import labelled_graph
from tests.runtime.in_memory.test_batch_norm import OfEdges
from tests.runtime.workers.epochs import Numbers, trained
from tests.runtime.workers.exactness_driver import GatedLayer, graph_of, normed, normed_edges
from tests.runtime.workers.processes import join, run_workers, start_workers

TIMEOUT_S = 20.0
AGAIN = ("gcn", "gat", "extremes", "jumping", "batch norms")
"Cases that two workers run as well, twice: with sums, softmax, accumulators that keep edges, connections across layers, and means over all vertices."
RUNS = {"2, first": (2, AGAIN), "2, again": (2, AGAIN), "3": (3, None)}
"Number of workers and cases of each run; None for every case."


class Extremes(sagann.SagaLayer):
    """Accumulators that keep edges, and one that reads its result again."""

    accumulator = ("mean", "max", "std")

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * in_dim, out_dim)
        self.out = nn.Linear(3 * out_dim, out_dim)

    def apply_edge(self, edge: sagann.Edge) -> Tensor:
        return torch.relu(self.inner(torch.cat([edge.src, edge.dst], -1)))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.out(accum)


class Sum(sagann.SagaLayer):
    """The sum of the in-neighbours' rows."""

    accumulator = "sum"

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


class Jumping(nn.Module):
    """What one layer gathers is what the next one reads, and the last stage reads the results of all of them."""

    num_hops = 3

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 6), nn.Linear(12, 3)
        self.layers = nn.ModuleList([Sum(), Sum(), Sum()])

    def forward(self, hops: Sequence[sagann.Topology], x: Tensor) -> Tensor:
        rows = [torch.tanh(self.before(x)) / 8]
        for layer, hop in zip(self.layers, hops, strict=True):
            rows.append(layer(hop, rows[-1]) / 8)
        return self.after(torch.cat([rows[1] + rows[2], rows[3]], -1))


def cases() -> Iterator[tuple[str, Callable[[], nn.Module], Graph]]:
    for name in ("gcn", "gat", "ggnn"):
        graph = labelled_graph(types=3 if name == "ggnn" else 0)
        config = ModelConfig(model=name, hidden=8, layers=3 if name == "gcn" else 2, dropout=0.5)
        yield name, partial(build_model, config, graph), graph
    yield "own", lambda: GNN([GatedLayer(8, 16), GatedLayer(16, 3)], dropout=0.2), labelled_graph()
    yield "extremes", lambda: GNN([Extremes(8, 16), Extremes(16, 3)]), labelled_graph()
    yield "jumping", Jumping, labelled_graph()
    yield "batch norms", normed, labelled_graph()
    yield "batch norms, empty parts", normed, graph_of([(vertex, 0) for vertex in range(1, 37)], 40)
    yield "batch norms of edges", normed_edges, labelled_graph()
    hub = graph_of([(vertex, 0) for vertex in range(1, 37)], 40)
    yield "one hub, empty parts", lambda: GNN([GatedLayer(8, 3)]), hub
    yield "batch norms of edges, empty parts", lambda: GNN([OfEdges(8, 3)]), hub
    yield "no edges", lambda: GNN([GatedLayer(8, 3)]), graph_of([], 5)


def prepared_by(build: Callable[[], nn.Module], graph: Graph, workers: Workers | None) -> Predictor:
    torch.manual_seed(5)
    graph = in_double(graph)
    return Predictor(build().double(), Contract.of(graph), device=torch.device("cpu"), workers=workers)


def in_double(graph: Graph) -> Graph:
    return replace(graph, features=graph.features.double())


def numbers_of(predictor: Predictor, graph: Graph, spill: Path | None) -> Numbers:
    """Losses, gradients, logits and embeddings of some epochs; streamed where there is a spill folder."""
    model = predictor.model
    prepared = predictor.prepare(in_double(graph))
    if spill is not None:
        assert prepared.part is not None
        predictor.stream_within(Streaming(memory_bytes=budget_of(predictor, prepared.part), spill=spill))
    source = WholeGraph(predictor, prepared)
    torch.manual_seed(11)
    predictor.try_out(prepared)
    torch.manual_seed(12)
    found, _ = trained(model, source)
    found["embeddings"] = predictor.embed(prepared)
    if spill is not None:
        streamed = predictor.passes.over(prepared)
        found["intervals"] = torch.tensor(len(streamed.bounds) - 1)
        predictor.release()
    return found


def budget_of(predictor: Predictor, part: WorkerPart) -> int:
    """A part of the bytes that an epoch takes without cuts: less at each worker than at the one before."""
    model = predictor.model.train()
    whole = stream_part(model, part, part.blocks, budget_bytes=1 << 40, num_intervals=1)
    return max(2000, whole.plan(part.features, folded=True).plan.peak_bytes * 4 // (5 + part.workers.rank))


def all_numbers(
    workers: Workers | None, spill: Path | None, names: Collection[str] | None = None
) -> dict[str, Numbers]:
    return {
        name: numbers_of(prepared_by(build, graph, workers), graph, spill)
        for name, build, graph in cases()
        if names is None or name in names
    }


def save_numbers(workers: Workers, folder: Path, name: str, names: Collection[str] | None) -> None:
    spill = folder / "spill"
    torch.save(all_numbers(workers, spill, names), folder / f"{name}, worker {workers.rank}.pt")


def refuse(workers: Workers, folder: Path) -> None:
    """The second worker's budget is too small; every worker ends with an error that names it."""
    _, build, graph = next(cases())
    predictor = prepared_by(build, graph, workers)
    prepared = predictor.prepare(in_double(graph))
    memory_bytes = 100 if workers.rank == 1 else 1 << 30
    predictor.stream_within(Streaming(memory_bytes=memory_bytes, spill=folder / "spill"))
    with pytest.raises(SagannError) as refused:
        predictor.try_out(prepared)
    assert isinstance(refused.value, InputError)
    (folder / f"refused-{workers.rank}.txt").write_text(str(refused.value))
    predictor.release()


def die(workers: Workers, folder: Path) -> None:
    """The second worker is killed in an epoch; the others' errors name it."""
    _, build, graph = next(cases())
    predictor = prepared_by(build, graph, workers)
    prepared = predictor.prepare(in_double(graph))
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
        step.complete_gradients()
    except SagannError as error:
        (folder / f"died-{workers.rank}.txt").write_text(str(error))
        raise
    finally:
        # The kernel frees the lock of the killed process' folder when the process has ended.
        time.sleep(0.5)
        predictor.release()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    # What is compiled here, every fork has.
    torch.save(all_numbers(None, None), folder / "alone.pt")
    for name, (size, names) in RUNS.items():
        run_workers(partial(save_numbers, folder=folder, name=name, names=names), size)
    run_workers(partial(refuse, folder=folder), 2)
    codes = join(start_workers(partial(die, folder=folder), 2, timeout_s=TIMEOUT_S))
    (folder / "codes.txt").write_text(" ".join(map(str, codes)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

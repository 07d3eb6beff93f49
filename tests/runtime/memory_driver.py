"""Runs epochs of a model over a generated graph in this process: streamed within a budget, in memory, or both.

``python -m tests.runtime.memory_driver MODEL BUDGET_MIB SPILL WAY...``, a way being ``streamed`` or ``dense``. Prints
JSON, by way.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from threading import Event, Thread

import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.graph import Graph, Topology
from sagann.kernels.memory import POOL
from sagann.nn import GNN, ModelConfig, build_model
from sagann.runtime.streaming.stream import stream

NUM_VERTICES, NUM_EDGES, NUM_FEATURES, NUM_CLASSES = 150_000, 1_200_000, 128, 16


def generated(num_vertices: int, num_edges: int) -> Graph:
    """A random graph with random features."""
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(num_vertices, (2, num_edges), generator=generator)
    return Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=num_vertices),
        features=torch.randn(num_vertices, NUM_FEATURES, generator=generator),
        labels=torch.randint(NUM_CLASSES, (num_vertices,), generator=generator),
        num_classes=NUM_CLASSES,
    )


def anonymous_bytes() -> int:
    """Memory of the process that is no file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not tell RssAnon")


class Watch:
    """The most anonymous memory while it is open, above what there was when it was opened."""

    def __enter__(self) -> Watch:
        self.start_bytes = self.most_bytes = anonymous_bytes()
        self._end = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def above_bytes(self) -> int:
        return self.most_bytes - self.start_bytes

    def _run(self) -> None:
        while not self._end.wait(0.001):
            self.most_bytes = max(self.most_bytes, anonymous_bytes())


def loss_of(z: Tensor, vertices: slice, *, labels: Tensor) -> Tensor:
    """The share of some vertices in the mean loss."""
    return F.cross_entropy(z, labels[vertices], reduction="sum") / NUM_VERTICES


def dense(model: GNN, graph: Graph) -> dict[str, float]:
    """An epoch in memory."""
    assert graph.features is not None
    assert graph.labels is not None
    POOL.release()
    with Watch() as watch:
        z = model(graph.hops(model.num_hops), graph.features)
        loss = loss_of(z, slice(0, NUM_VERTICES), labels=graph.labels)
        loss.backward()  # type: ignore[no-untyped-call]
    return {"above_bytes": watch.above_bytes, "loss": loss.item()}


def streamed(model: GNN, graph: Graph, *, budget_bytes: int, spill: Path) -> dict[str, float]:
    """A streamed epoch, after one in which kernels are compiled and what comes once is made."""
    assert graph.features is not None
    assert graph.labels is not None
    part = partial(loss_of, labels=graph.labels)
    made = stream(model, graph, budget_bytes=budget_bytes, spill=spill)
    plan = made.plan(graph.features, folded=True).plan
    made.loss(graph.features, part).backward()  # type: ignore[no-untyped-call]
    POOL.release()
    with Watch() as watch:
        loss = made.loss(graph.features, part)
        loss.backward()  # type: ignore[no-untyped-call]
    found = {"above_bytes": watch.above_bytes, "peak_bytes": plan.peak_bytes, "loss": loss.item()}
    return found | {"num_intervals": plan.num_intervals, "stored_bytes": plan.stored_bytes}


def main() -> None:
    """Measure."""
    name, budget_bytes = sys.argv[1], int(sys.argv[2]) << 20
    torch.set_num_threads(1)
    graph = generated(NUM_VERTICES, NUM_EDGES)
    model = build_model(ModelConfig(model=name, hidden=128, heads=4, dropout=0.0), graph)
    graph = model.prepare(graph)
    assert graph.features is not None
    assert graph.labels is not None
    run = {"streamed": partial(streamed, budget_bytes=budget_bytes, spill=Path(sys.argv[3])), "dense": dense}
    json.dump({way: run[way](model, graph) for way in sys.argv[4:]}, sys.stdout)


if __name__ == "__main__":
    main()

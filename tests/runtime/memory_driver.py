"""Runs epochs of a model over a generated graph in this process: streamed within a budget, or in memory.

``python -m tests.runtime.memory_driver MODEL BUDGET_MIB SPILL``; without a budget (0), in memory. Prints JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from threading import Event, Thread

import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.graph import Graph, Topology
from sagann.kernels.memory import POOL
from sagann.nn import ModelConfig, build_model
from sagann.runtime.stream import stream

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


def main() -> None:
    """Measure."""
    name, budget_bytes = sys.argv[1], int(sys.argv[2]) << 20
    torch.set_num_threads(1)
    graph = generated(NUM_VERTICES, NUM_EDGES)
    model = build_model(ModelConfig(model=name, hidden=128, heads=4, dropout=0.0), graph)
    graph = model.prepare(graph)
    assert graph.features is not None
    assert graph.labels is not None
    features, labels = graph.features, graph.labels

    def loss_of(z: Tensor, vertices: slice) -> Tensor:
        return F.cross_entropy(z, labels[vertices], reduction="sum") / NUM_VERTICES

    if not budget_bytes:
        with Watch() as watch:
            loss = loss_of(model(graph.hops(model.num_hops), features), slice(0, NUM_VERTICES))
            loss.backward()  # type: ignore[no-untyped-call]
        json.dump({"above_bytes": watch.above_bytes, "loss": loss.item()}, sys.stdout)
        return
    streamed = stream(model, graph, budget_bytes=budget_bytes, spill=Path(sys.argv[3]))
    plan = streamed.plan(features, folded=True).plan
    # Kernels are compiled, and what comes once is there.
    streamed.loss(features, loss_of).backward()  # type: ignore[no-untyped-call]
    POOL.release()
    with Watch() as watch:
        loss = streamed.loss(features, loss_of)
        loss.backward()  # type: ignore[no-untyped-call]
    found = {"above_bytes": watch.above_bytes, "peak_bytes": plan.peak_bytes, "loss": loss.item()}
    json.dump(found | {"num_intervals": plan.num_intervals, "stored_bytes": plan.stored_bytes}, sys.stdout)


if __name__ == "__main__":
    main()

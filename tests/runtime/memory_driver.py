"""Streams an epoch of each of some models in this process, then runs an epoch of the last model in memory.

``python -m tests.runtime.memory_driver SPILL MODEL[:LAYERS][@BUDGET]...``. A model is one of the zoo, or ``own``. Its budget is
a third of the memory that an epoch takes with everything in memory, or with ``@16`` a sixteenth. With ``@least`` or ``@offered``
it is the budget that the error of one that is too small names. Before and after each epoch the driver prints a line of JSON and
waits for a line from its parent, which may set a limit meanwhile.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.graph import Graph, Topology
from sagann.kernels.memory import POOL
from sagann.nn import ModelConfig, build_model
from sagann.plan.residency import BudgetError
from sagann.runtime.streaming.stream import dense_bytes, stream
from sagann.saga import Edge, SagaLayer

NUM_VERTICES, NUM_EDGES, NUM_FEATURES, NUM_CLASSES = 80_000, 480_000, 128, 16
SHARE = 3
"The budget is this part of the memory that an epoch takes with everything in memory."


def generated(num_vertices: int, num_edges: int, num_features: int = NUM_FEATURES) -> Graph:
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(num_vertices, (2, num_edges), generator=generator)
    return Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=num_vertices),
        features=torch.randn(num_vertices, num_features, generator=generator),
        labels=torch.randint(NUM_CLASSES, (num_vertices,), generator=generator),
        num_classes=NUM_CLASSES,
    )


def anonymous_bytes() -> int:
    """Memory of the process without pages of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not tell RssAnon")


class Gated(SagaLayer):
    """A message of both ends, and a residual connection."""

    accumulator = "mean"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_src, self.of_dst = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(2 * width, width)

    def apply_edge(self, edge: Edge) -> Tensor:
        return torch.sigmoid(self.of_dst(edge.dst) + self.of_src(edge.src)) * edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return vertex + torch.relu(self.out(torch.cat([vertex, accum], 1)))


class Own(nn.Module):
    """A model of a user's own: no layer of the zoo, and every layer leads to the output."""

    num_hops = 3

    def __init__(self, in_dim: int, out_dim: int, width: int = 64) -> None:
        super().__init__()
        self.first, self.batch_norm = nn.Linear(in_dim, width), nn.BatchNorm1d(width)
        self.layers = nn.ModuleList(Gated(width) for _ in range(self.num_hops))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width * (1 + self.num_hops), out_dim)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        rows = [torch.relu(self.batch_norm(self.first(x)))]
        for hop, layer in zip(hops, self.layers, strict=True):
            rows.append(self.norm(layer(hop, rows[-1])))
        return self.last(torch.cat(rows, 1))


class Watch:
    """The most anonymous memory inside the ``with`` block, beyond the memory at its start."""

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
    """The part of some vertices in the mean loss."""
    return F.cross_entropy(z, labels[vertices], reduction="sum") / NUM_VERTICES


def measured(epoch: Callable[[], Tensor], **told: float) -> None:
    """Tell the parent about an epoch, run the epoch when it answers, tell the memory that it took, and wait again."""
    gc.collect()
    POOL.release()
    # Free memory of the heap would let the epoch take more than its limit.
    ctypes.CDLL(None).malloc_trim(0)
    tell_and_wait({"anonymous_bytes": anonymous_bytes(), **told})
    began_s = time.perf_counter()
    with Watch() as watch:
        epoch().backward()  # type: ignore[no-untyped-call]
    tell_and_wait({"above_bytes": watch.above_bytes, "epoch_s": time.perf_counter() - began_s})


def tell_and_wait(told: Mapping[str, float]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


def built(name: str, graph: Graph) -> tuple[nn.Module, Graph]:
    """A model, and the graph as the model reads it."""
    if name == "own":
        return Own(NUM_FEATURES, NUM_CLASSES), graph
    kind, _, layers = name.partition(":")
    given: dict[str, Any] = {"layers": int(layers)} if layers else {}
    # A map on the edges is streamed only where it is small.
    given |= {"hidden": 32, "encoder": "linear"} if kind == "edgeconv" else {"hidden": 64}
    model = build_model(ModelConfig(model=kind, heads=4, dropout=0.0, **given), graph)
    return model, model.prepare(graph)


def budget_of(model: nn.Module, graph: Graph, spill: Path, name: str) -> int:
    """The budget of a name: ``least``, ``offered``, or a part of the memory of an epoch."""
    if not name or name.isdigit():
        return dense_bytes(model, graph) // int(name or SHARE)
    try:
        stream(model, graph, budget_bytes=1, spill=spill)
    except BudgetError as error:
        return {"least": error.needed_bytes, "offered": error.offered_bytes}[name]
    raise AssertionError("a budget of one byte is accepted")


def streamed(model: nn.Module, graph: Graph, spill: Path, budget_bytes: int) -> None:
    """A streamed epoch, after one that compiles kernels and computes constants."""
    made = stream(model, graph, budget_bytes=budget_bytes, spill=spill)
    plan = made.plan(graph.features, folded=True).plan
    epoch = partial(made.loss, graph.features, partial(loss_of, labels=graph.labels))
    epoch().backward()  # type: ignore[no-untyped-call]
    told = {"peak_bytes": plan.peak_bytes, "num_intervals": plan.num_intervals, "stored_bytes": plan.stored_bytes}
    measured(epoch, budget_bytes=budget_bytes, **told)
    made.close()


def in_memory(model: nn.Module, graph: Graph) -> Tensor:
    z = model(graph.hops(model.num_hops), graph.features)
    return loss_of(z, slice(0, NUM_VERTICES), labels=graph.labels)


def main() -> None:
    torch.set_num_threads(1)
    plain = generated(NUM_VERTICES, NUM_EDGES)
    spill = Path(sys.argv[1])
    for name in sys.argv[2:]:
        of_model, _, of_budget = name.partition("@")
        model, graph = built(of_model, plain)
        streamed(model, graph, spill, budget_of(model, graph, spill, of_budget))
    measured(partial(in_memory, model, graph))


if __name__ == "__main__":
    main()

"""Cutting a graph into parts, and predicting what a part takes: ``python -m bench.partition``.

The first table has the milliseconds of a balanced cut, given prefix sums: the median of nine runs. The degrees are power-law, and
the workers have unlike speeds.

The second table has errors of the cost model. It learns from layers that run forward and backward on parts of an R-MAT graph, a part
being a topology of its own with the sources of its edges. It predicts the same layers on other parts of this graph, and on parts
of another graph of another size and density. Measured are seconds of the processor, the least of some runs, because other work on the machine
changes these least. An error is |predicted / measured - 1|. "slowest" is the error of the longest part of a cut, which is the error of an
epoch. Beside the model is the simplest one, seconds proportional to edges.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from bench.operations.sagann_worker import Gated, Sum
from bench.origin import commit
from bench.result_tables import table_line
from sagann.graph import Topology, rmat_edges
from sagann.nn import SAGE
from sagann.partition import (
    CostFeatures,
    CostModel,
    Measurement,
    PartCosts,
    balanced_bounds,
    count_cost_features,
    part_of,
)
from sagann.runtime.processor import processor_name

RUNS = 9
FEATURES = 64
ROW_BYTES = 4 * FEATURES
LAYERS: Mapping[str, Callable[[], nn.Module]] = {
    "sum": Sum,
    "gated sum": Gated,
    "SAGE": lambda: SAGE(FEATURES, FEATURES),
}
COSTS: Mapping[str, Callable[[Topology], PartCosts]] = {
    "edges": lambda topology: PartCosts.of_edges(topology.indptr),
    "vertices": lambda topology: PartCosts.of_vertices(topology.num_dst),
}
LEARNED_CUTS = (("edges", 4), ("vertices", 4), ("edges", 7))
"What the parts that the cost model learns from have equally much of, and their number."
PREDICTED_CUTS = (("edges", 5), ("vertices", 6))
"The same of the parts that it predicts."


def main() -> None:
    """Print both tables."""
    options = _options()
    torch.set_num_threads(options.threads)
    print(f"`python -m bench.partition {' '.join(sys.argv[1:])}`".replace(" `", "`"))
    print(f"at {commit()}; {processor_name()}; threads: {options.threads}.\n")
    print("| vertices | parts | by edges, ms | by cost, ms |")
    print("|--:|--:|--:|--:|", flush=True)
    for num_vertices in options.vertices:
        found = [f"{1e3 * seconds:.2f}" for seconds in cut_s(num_vertices, options.parts)]
        print(table_line([f"{num_vertices:,}", str(options.parts), *found]), flush=True)
    print(
        "\n| layer | graph | parts | median error | largest | slowest | median error by edges | largest | slowest |"
    )
    print("|:--|:--|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for row in prediction_rows(options.edges, options.runs):
        print(table_line(row), flush=True)


def cut_s(num_vertices: int, num_parts: int) -> tuple[float, float]:
    """Median seconds of a cut by edges and of one by cost."""
    random = np.random.default_rng(0)
    # In place, because degrees of 100 million vertices are large.
    degrees = np.minimum(random.pareto(1.2, num_vertices) + 1, 1e6).astype(np.int64)
    sums = np.zeros((num_vertices + 1, 4), dtype=np.int64)
    for column, factor in enumerate((1, 1, 1, 4)):
        np.cumsum(degrees * factor, out=sums[1:, column])
    indptr = torch.from_numpy(sums[:, 0].copy())
    costs = PartCosts(sums=sums, weights=np.array([2e-8, 1e-9, 2e-9, 0.0, 3e-9]))
    speeds = random.uniform(0.5, 1.5, num_parts).tolist()
    return _cut_once_s(PartCosts.of_edges(indptr), speeds), _cut_once_s(costs, speeds)


def _cut_once_s(costs: PartCosts, speeds: Sequence[float]) -> float:
    balanced_bounds(costs, speeds)
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        balanced_bounds(costs, speeds)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """The measured parts of a cut."""

    features: list[list[float]]
    "Cost features of each part."
    seconds: dict[str, list[float]]
    "Seconds of each part, by layer."


def prediction_rows(num_edges: int, runs: int) -> list[list[str]]:
    """Rows of the second table.

    Args:
        num_edges: number of edges of the graph that is learned from.
        runs: runs of each layer on each part.
    """
    # Without scrambling, the first vertices have most of the edges: parts differ in degree and locality.
    this = _rmat(num_edges // 15, num_edges, seed=0)
    other = _rmat(num_edges // 25, num_edges * 2 // 3, seed=1)
    layers = {name: make() for name, make in LAYERS.items()}
    model = CostModel(forgetting=1.0)
    per_edge: dict[str, float] = {}
    learned = [_measured(this, balance, count, layers, runs) for balance, count in LEARNED_CUTS]
    for cut in learned:
        model = model.updated(
            Measurement(kind=name, worker=0, features=features, seconds=seconds)
            for name in layers
            for features, seconds in zip(cut.features, cut.seconds[name], strict=True)
        )
    for name in layers:
        seconds = sum(sum(cut.seconds[name]) for cut in learned)
        per_edge[name] = seconds / sum(features[1] for cut in learned for features in cut.features)
    rows = []
    for graph, topology in (("the same", this), ("another", other)):
        cuts = [_measured(topology, balance, count, layers, runs) for balance, count in PREDICTED_CUTS]
        for name in layers:
            by_model = _errors(cuts, name, lambda x, name=name: model.predict(name, x))
            by_edges = _errors(cuts, name, lambda x, name=name: per_edge[name] * x[1])
            count = sum(len(cut.features) for cut in cuts)
            rows.append([name, graph, str(count), *(f"{error:.1%}" for error in (*by_model, *by_edges))])
    return rows


def _errors(cuts: Sequence[Cut], layer: str, predict: Callable[[list[float]], float]) -> tuple[float, float, float]:
    """Median and largest error over all parts, and largest error of a cut's slowest part."""
    errors, slowest = [], []
    for cut in cuts:
        predicted, measured = [predict(x) for x in cut.features], cut.seconds[layer]
        errors += [abs(a / b - 1) for a, b in zip(predicted, measured, strict=True)]
        slowest.append(abs(max(predicted) / max(measured) - 1))
    return median(errors), max(errors), max(slowest)


def _measured(topology: Topology, balance: str, count: int, layers: Mapping[str, nn.Module], runs: int) -> Cut:
    bounds = balanced_bounds(COSTS[balance](topology), [1.0] * count)
    features: CostFeatures = count_cost_features(topology, [ROW_BYTES])
    found = Cut(features=[], seconds={name: [] for name in layers})
    for worker, (first, stop) in enumerate(pairwise(bounds)):
        own = part_of(topology, bounds, worker)
        part = Topology(indptr=own.indptr, indices=own.indices, num_src=own.num_src)
        x = torch.randn(part.num_src, FEATURES, requires_grad=True)
        found.features.append(features.of_part(first, stop, ROW_BYTES).tolist())
        for name, layer in layers.items():
            found.seconds[name].append(_least_s(layer, part, x, runs))
    return found


def _least_s(layer: nn.Module, part: Topology, x: Tensor, runs: int) -> float:
    """Least seconds of the processor for a run forward and backward, after one that prepares the part."""
    gradient, seconds = torch.ones(part.num_dst, FEATURES), []
    for _ in range(1 + runs):
        x.grad = None
        layer.zero_grad()
        start = time.process_time()
        layer(part, x).backward(gradient)
        seconds.append(time.process_time() - start)
    return min(seconds[1:])


def _rmat(num_vertices: int, num_edges: int, *, seed: int) -> Topology:
    src, dst = rmat_edges(num_vertices, num_edges, seed=seed, scramble=False)
    return Topology.from_coo(src=src, dst=dst, num_src=num_vertices)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, nargs="*", default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--edges", type=int, default=2_000_000, help="edges of the graph that is learned from")
    parser.add_argument("--runs", type=int, default=7, help="runs of each layer on each part")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()

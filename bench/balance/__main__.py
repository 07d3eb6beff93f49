"""Two workers of one thread each, of which the second one has a part of a core: ``python -m bench.balance``. Prints Markdown.

Parts of equal edges, and parts that are balanced by cost from measured epochs, take turns with the best static parts, which are found by search.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.epochs.graphs import hubs_first
from bench.held_back import HELD_BACK, held_back
from bench.pages import best_of, command_line, head, parser_of, row
from bench.timing import median_ratio
from bench.workers import Worker, places_of
from sagann.graph import Graph
from sagann.partition import vertex_ranges
from sagann.runtime.processor import processor_name
from sagann.storage import save_graph

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"Shares of the edges that the search first gives the slow worker."
REFINED = (0.05, 0.025, 0.0125)
"Steps of the search to either side of the best share so far."
COLUMNS = "model | parts | share | epoch, s | against the best | moves after epochs"


def main() -> None:
    options = _options()
    graph = hubs_first(options)
    print(
        f"# Balance of workers\n\n`{command_line('bench.balance')}`; {processor_name()}; PyTorch {torch.__version__}. An epoch is forward, "
        f"cross-entropy, backward and a step of Adam, without dropout; 2 layers, hidden {options.hidden}.\n\nR-MAT, {graph.num_vertices:,} vertices, "
        f"{graph.num_edges:,} edges, {options.features} features; medians of {options.rounds} turns of {options.epochs} epochs.\n",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="sagann_balance_", dir=options.work) as folder:
        save_graph(graph, Path(folder) / "graph")
        for number, model in enumerate(options.models):
            specification = {"folder": f"{folder}/graph", "model": model, "hidden": options.hidden}
            with Group(specification, size=2) as group:
                group.hold_back(1, options.share)
                if not number:
                    print(
                        f"The second worker has {options.share:g} of a core by {HELD_BACK}; *share* is its share of the edges.\n"
                    )
                    print(head(COLUMNS, words=("parts", "moves after epochs")))
                for cells in unequal(group, graph, options):
                    print(row([model, *cells]), flush=True)


def unequal(group: Group, graph: Graph, options: argparse.Namespace) -> list[list[str]]:
    """Rows of equal edges, of parts that are balanced by cost, and of the best static parts."""
    indptr, num_vertices = graph.topology.indptr, graph.num_vertices

    def share_of(bounds: Sequence[int]) -> float:
        return int(indptr[-1] - indptr[bounds[1]]) / int(indptr[-1])

    def bounds_of(share: float) -> tuple[int, ...]:
        return 0, int(torch.searchsorted(indptr, int((1 - share) * int(indptr[-1])))), num_vertices

    def epoch_s(bounds: Sequence[int]) -> float:
        group.ask(bounds=list(bounds))
        # After a move, what had been kept is computed anew.
        group.ask(epochs=1)
        return median(group.ask(epochs=options.epochs)[0]["seconds"])

    epochs = group.ask(balance=options.balanced_epochs)[0]["epochs"]
    moves = [number for number, epoch in enumerate(epochs, 1) if epoch["moved_to"] is not None]
    divisions = {
        "equal edges": vertex_ranges(indptr, 2),
        "balanced by cost": tuple(epochs[-1]["worker_bounds"]),
        "best static": bounds_of(best_of(lambda share: epoch_s(bounds_of(share)), SHARES, REFINED)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in divisions}
    for _ in range(options.rounds):
        for name, bounds in divisions.items():
            seconds[name].append(epoch_s(bounds))
    rows = []
    for name, bounds in divisions.items():
        ratio = median_ratio(seconds[name], seconds["best static"])
        moved = ", ".join(map(str, moves)) if name == "balanced by cost" else ""
        rows.append([name, f"{share_of(bounds):.1%}", f"{median(seconds[name]):.3f}", f"{ratio:.2f}", moved])
    return rows


def _options() -> argparse.Namespace:
    return parser_of(
        __doc__,
        {"hidden": 128, "rounds": 5, "epochs": 5, "vertices": 2e5, "edges": 4e6, "features": 64, "work": None},
        models=(["gcn", "gated-gcn"], "models"),
        share=(0.5, "of a core, that the slow worker has"),
        balanced_epochs=(12, "epochs after which vertices may move"),
    ).parse_args()


COMMAND = (sys.executable, "-m", "bench.balance.worker")


class Group(ExitStack):
    """Workers of one thread each, which end with the ``with`` block."""

    def __init__(self, specification: Mapping[str, Any], *, size: int) -> None:
        super().__init__()
        self._pool = self.enter_context(ThreadPoolExecutor(size))

        def start(place: Mapping[str, str]) -> Worker:
            return Worker(COMMAND, {**specification, "threads": 1, "environment": place})

        # A worker is ready when the others are.
        self.workers = list(self._pool.map(start, places_of(size)))
        for worker in self.workers:
            self.callback(worker.close)

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """The answers of all processes, in the order of the ranks."""
        return list(self._pool.map(lambda worker: worker.ask(request), self.workers))

    def hold_back(self, rank: int, share: float) -> None:
        """Let a process have a share of a core from now on."""
        self.enter_context(held_back(self.workers[rank].pid, share))


if __name__ == "__main__":
    main()

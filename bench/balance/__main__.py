"""Workers of one run: ``python -m bench.balance --work FOLDER > bench/results/balance.md``.

The first table: what dividing an epoch between two workers of one thread each costs, against one process of two threads. They take turns,
and a ratio is the median of the rounds'. What a worker sends is beside the bytes of the halo: each row that others read, once forward, and
once its gradient backward. Rows of constant features that are kept do not travel again.

The second table: two workers of one thread each, of which the second is held back, on a power-law graph. Parts of equal edges, parts that
``--balance cost`` has come to, and the best parts of a search take turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bench.balance.group import Group
from bench.epochs.graphs import SHAPES, generate, graph_of
from bench.origin import command_line
from bench.power_law import power_law
from bench.result_tables import table_line
from sagann.graph import Graph
from sagann.partition import vertex_ranges
from sagann.runtime.processor import processor_name
from sagann.storage import save_graph

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"Shares of the edges that the search first gives the slow worker."
REFINED = (0.05, 0.025, 0.0125)
"How far to either side of the best share so far it then looks."


def main() -> None:
    """Print both tables."""
    options = _options()
    print(f"# Balance of workers\n\n`{command_line('bench.balance', sys.argv[1:])}`; {processor_name()}; ")
    print(
        f"PyTorch {torch.__version__}. An epoch is forward, cross-entropy, backward and a step of Adam, without dropout; "
    )
    print(f"2 layers, hidden {options.hidden}.", flush=True)
    with tempfile.TemporaryDirectory(prefix="sagann_balance_", dir=options.work) as name:
        folder = Path(name)
        if options.graphs:
            _print_divided(folder, options)
        if options.edges:
            _print_unequal(folder, options)


def _print_divided(folder: Path, options: argparse.Namespace) -> None:
    print(
        f"\n## Two workers of one thread each, one process of two threads\n\nMedians of {options.rounds} turns of "
        f"{options.epochs} epochs. Bytes are those of an epoch, of both workers together.\n\n"
        "| graph | model | one process, s | two workers, s | ratio | computing of the slower worker, s | sent, MB | the halo once each way, MB |\n"
        "|:--|:--|--:|--:|--:|--:|--:|--:|",
        flush=True,
    )
    for graph in options.graphs:
        path = folder / graph
        save_graph(graph_of(generate(SHAPES[graph])), path)
        for model in options.models:
            row = divided({"folder": str(path), "model": model, "hidden": options.hidden}, options)
            print(table_line([graph, model, *row]), flush=True)


def divided(specification: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """Seconds of one process and of two workers, their ratio, and the bytes that workers send."""
    turns = []
    with Group(specification, size=1, threads=2) as alone, Group(specification, size=2, threads=1) as together:
        for _ in range(options.rounds):
            (one,), two = alone.ask(epochs=options.epochs), together.ask(epochs=options.epochs)
            turns.append(
                (median(one["seconds"]), median(two[0]["seconds"]), max(each["computing_s"] for each in two))
            )
    one_s, two_s, computing_s = (median(column) for column in zip(*turns, strict=True))
    ratio = median(two / one for one, two, _ in turns)
    sent, halo = (sum(each[name] for each in two) / 1e6 for name in ("sent_bytes", "halo_bytes"))
    return [f"{one_s:.3f}", f"{two_s:.3f}", f"{ratio:.2f}", f"{computing_s:.3f}", f"{sent:.2f}", f"{halo:.2f}"]


def _print_unequal(folder: Path, options: argparse.Namespace) -> None:
    graph, path = power_law(int(options.vertices), int(options.edges), options.features), folder / "power-law"
    save_graph(graph, path)
    print(
        f"\n## Two unequal workers of one thread each\n\nR-MAT, {graph.num_vertices:,} vertices, {graph.num_edges:,} edges, "
        f"{options.features} features; medians of {options.rounds} turns of {options.epochs} epochs.\n",
        flush=True,
    )
    for number, model in enumerate(options.models):
        specification = {"folder": str(path), "model": model, "hidden": options.hidden}
        with Group(specification, size=2, threads=1) as group:
            held = group.hold_back(1, options.share)
            if not number:
                print(f"The second worker has {held}. Shares are those of the edges that it has.\n")
                print(
                    "| model | parts | share | epoch, s | against the best | moves after epochs |\n|:--|:--|--:|--:|--:|:--|"
                )
            for row in unequal(group, graph, options):
                print(table_line([model, *row]), flush=True)


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
        "best static": bounds_of(best_share(lambda share: epoch_s(bounds_of(share)))),
    }
    seconds: dict[str, list[float]] = {name: [] for name in divisions}
    for _ in range(options.rounds):
        for name, bounds in divisions.items():
            seconds[name].append(epoch_s(bounds))
    rows = []
    for name, bounds in divisions.items():
        ratio = median(np.divide(seconds[name], seconds["best static"]).tolist())
        moved = ", ".join(map(str, moves)) if name == "balanced by cost" else ""
        rows.append([name, f"{share_of(bounds):.1%}", f"{median(seconds[name]):.3f}", f"{ratio:.2f}", moved])
    return rows


def best_share(epoch_s: Callable[[float], float]) -> float:
    """The share of the edges that makes the shortest epoch, among shares on a grid that is refined around the best one."""
    found = {share: epoch_s(share) for share in SHARES}
    for step in REFINED:
        best = min(found, key=found.__getitem__)
        for share in (best - step, best + step):
            if share not in found:
                found[share] = epoch_s(share)
    return min(found, key=found.__getitem__)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", choices=list(SHAPES), default=["reddit-small", "reddit-middle"])
    parser.add_argument("--models", nargs="+", default=["gcn", "gated-gcn"])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each in alternation")
    parser.add_argument("--epochs", type=int, default=5, help="epochs in a turn")
    parser.add_argument("--vertices", type=float, default=2e5, help="of the power-law graph")
    parser.add_argument(
        "--edges", type=float, default=4e6, help="of the power-law graph; 0 leaves the second table out"
    )
    parser.add_argument("--features", type=int, default=64, help="of the power-law graph")
    parser.add_argument("--share", type=float, default=0.5, help="of a core, that the slow worker has")
    parser.add_argument("--balanced-epochs", type=int, default=12, help="epochs after which vertices may move")
    parser.add_argument("--work", type=Path, help="folder for the graphs, which are deleted after use")
    return parser.parse_args()


if __name__ == "__main__":
    main()

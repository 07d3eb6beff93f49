"""A graph larger than memory, inside a hard limit: ``python -m bench.size``. Prints a Markdown table.

The shape of ROC's and NeuGraph's Amazon graph, generated as a power-law graph in bounded memory. sagann trains a 2-layer GCN
on it within a budget; PyG and DGL try the same. Each runs in a control group of its own, whose limit the kernel enforces.
With ``--workers`` several workers train instead, each of them a part of the graph, without peers.

References:
    Jia et al., ROC, MLSys 2020, Table 4: Amazon.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.pages import command_line, parser_of
from bench.size.contest import UNLIMITED, Result, Task, run_peer, run_plan, run_sagann, write_first_weights
from bench.size.report import HEADER, NOTES, plan_lines, row_of, trains, verdict
from sagann.byte_size import parse_bytes
from sagann.runtime.processor import processor_name

VERTICES, EDGES, FEATURES, CLASSES = 9_430_088, 231_594_310, 300, 24
"ROC, Table 4."
PEERS = ("pyg:edge_index", "pyg:csr")


def main(given: Sequence[str] | None = None) -> int:
    """Generate, run everybody, report; 0 where sagann alone lives."""
    arguments = _arguments(given)
    limit = UNLIMITED if arguments.limit == "none" else parse_bytes(arguments.limit, where="--limit")
    print(f"`{command_line('bench.size', given)}`; {arguments.threads} threads, {processor_name()}.\n")
    task = task_of(arguments, limit)
    if task.workers == 1:
        plan = run_plan(task, arguments.machine)
        print("\n".join(plan_lines(plan)), end="\n\n", flush=True)
    print(HEADER, flush=True)
    ours = run_sagann(task)
    print("\n".join(map(row_of, ours)), flush=True)
    others = _peers(task, arguments) if task.workers == 1 else []
    print(f"\n{verdict(ours, others)}\n\n{NOTES}")
    for result in (*ours, *others):
        # What those said who failed otherwise than by being killed.
        if result.ended.outcome not in ("ok", "killed"):
            print(f"{result.name}: {result.ended.errors.strip()}", file=sys.stderr)
    return 0 if trains(ours) else 1


def _peers(task: Task, arguments: argparse.Namespace) -> list[Result]:
    results = []
    for name in [*PEERS, *(["dgl"] if arguments.dgl else [])]:
        results.append(run_peer(task, name, arguments.dgl if name == "dgl" else None))
        print(row_of(results[-1]), flush=True)
    return results


def task_of(arguments: argparse.Namespace, limit_bytes: int) -> Task:
    """The graph at its scale, generated where it is not there yet, and what is done with it."""
    vertices, edges = max(2, round(VERTICES * arguments.scale)), round(EDGES * arguments.scale)
    folder = arguments.work / f"graph-{vertices}"
    if not folder.exists():
        counts = {"vertices": vertices, "edges": edges, "features": FEATURES, "classes": CLASSES}
        options = [word for name, count in counts.items() for word in (f"--{name}", str(count))]
        generate = ["sagann", "data", "generate", "rmat", str(folder), *options, "--drop-self-loops"]
        command = [sys.executable, "-m", *generate]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    task = Task(
        dataset=folder,
        work=arguments.work / f"at-{vertices}",
        hidden=arguments.hidden,
        epochs=arguments.epochs,
        lr=arguments.lr,
        threads=arguments.threads,
        memory=arguments.memory,
        limit_bytes=limit_bytes,
        workers=arguments.workers,
    )
    write_first_weights(task)
    return task


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, hidden=64, threads=2)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the graph, which stays, and what is spilled"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="part of the shape's vertices and edges")
    parser.add_argument("--limit", default="6GiB", help="of each control group; 'none' for no limit")
    parser.add_argument("--memory", default="3GiB", help="budget of each process of sagann")
    parser.add_argument("--workers", type=int, default=1, help="processes of sagann")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--machine", type=Path, help="rates for the forecast; default this machine's, probed")
    parser.add_argument("--dgl", help="Python of an environment with DGL")
    arguments = parser.parse_args(given)
    arguments.work.mkdir(parents=True, exist_ok=True)
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())

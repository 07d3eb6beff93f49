"""Gathers as operations, forward and backward, against PyG and DGL: ``python -m bench.operations --dgl PYTHON``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from bench.contest import Contestant, Results, Rules, results_of, run_contest
from bench.epochs.__main__ import PYG_VARIANTS, contest_parser
from bench.epochs.graphs import stored_graph, write_graph
from bench.epochs.report import at_least, mean_at_least, render, rows_of, sound_rows
from bench.origin import command_line, commit
from bench.workers import ROOT, WorkerEndedError
from sagann.runtime.processor import processor_name

OPERATIONS = ("sum", "weighted-sum", "max", "gated", "softmax")
DEFAULT_DATASETS = ("pubmed", "amazon_computers", "reddit-small", "facebook10")
"In the last-level cache and out of it."


def main() -> int:
    """Measure, or check that all compute the same."""
    arguments = _arguments()
    contestants = _contestants(arguments.dgl)
    rules = Rules(rounds=arguments.rounds, epochs=arguments.epochs)
    if arguments.check:
        with TemporaryDirectory(prefix="sagann_operations_") as folder:
            return _check(contestants, arguments, rules, folder)
    settings = {**asdict(rules), "threads": arguments.threads}
    results = Results(arguments.results, settings, commit(), processor_name())
    for dataset in arguments.datasets:
        for features in arguments.features:
            with TemporaryDirectory(prefix="sagann_operations_", dir=arguments.work) as folder:
                _write(Path(folder), dataset, features)
                for operation in arguments.operations:
                    run_contest(
                        contestants,
                        _specification(arguments, operation, folder),
                        dataset=dataset,
                        task=f"{operation} F={features}",
                        rules=rules,
                        results=results,
                    )
                    _report(arguments, results, settings)
    return 0


def _contestants(dgl: str | None) -> list[Contestant]:
    ours = (sys.executable, "-m")
    found = [Contestant(name="sagann", command=(*ours, "bench.operations.sagann_worker"))]
    found += [
        Contestant(name=f"pyg:{variant}", command=(*ours, "bench.operations.pyg_worker"))
        for variant in PYG_VARIANTS
    ]
    if dgl is not None:
        found.append(
            Contestant(name="dgl", command=(dgl, str(ROOT / "bench" / "standalone" / "dgl_operations.py")))
        )
    return [*found, Contestant(name="floor", command=(*ours, "bench.operations.floor_worker"))]


def _write(folder: Path, dataset: str, features: int) -> None:
    """The dataset's graph with rows of the wanted width."""
    stored = stored_graph(dataset)
    generator = torch.Generator().manual_seed(0)
    write_graph(folder, replace(stored, features=torch.randn(stored.num_vertices, features, generator=generator)))


def _specification(
    arguments: argparse.Namespace, operation: str, folder: str
) -> Callable[[Contestant], Mapping[str, Any]]:
    def specify(contestant: Contestant) -> Mapping[str, Any]:
        return {
            "operation": operation,
            "variant": contestant.variant,
            "threads": arguments.threads,
            "folder": folder,
        }

    return specify


def _check(contestants: Sequence[Contestant], arguments: argparse.Namespace, rules: Rules, folder: str) -> int:
    wrong = 0
    _write(Path(folder), "tiny", arguments.features[0])
    for operation in arguments.operations:
        specification = _specification(arguments, operation, folder)
        expected: dict[str, np.ndarray] = {}
        for who in contestants:
            if who.system == "floor":
                continue
            try:
                found = results_of(who, specification(who), 1, rules)
            except WorkerEndedError as end:
                wrong += end.outcome != "unsupported"
                print(f"{operation:12} {who.name:20} {end.outcome}: {end.detail[-300:]}", flush=True)
                continue
            expected = expected or found
            difference = max(float(np.abs(found[name] - expected[name]).max()) for name in expected)
            wrong += difference > 1e-3
            said = "same" if difference <= 1e-3 else "DIFFERENT"
            print(f"{operation:12} {who.name:20} {said} ({difference:.1e})", flush=True)
    return int(wrong > 0)


def _report(arguments: argparse.Namespace, results: Results, settings: Mapping[str, Any]) -> None:
    records = list(results.records.values())
    rows = rows_of(records)
    without = "" if arguments.dgl else " **DGL was left out: --dgl PATH_TO_PYTHON was not given.**"
    lines = [
        "# Gathers as operations, forward and backward",
        "",
        f"`{command_line('bench.operations', sys.argv[1:])}` at {', '.join(results.origins)}; "
        f"{arguments.threads} threads, PyTorch {torch.__version__}.{without}",
        "",
        f"Rows require a gradient. Seconds are medians of {settings['rounds']} rounds in alternation. The floor is "
        "`bench/operations/floor.py`: the rows that edges must read, by C++, and the other bytes by copying.",
    ]
    speedups = {(row.dataset, row.task): row.speedup for row in rows if row.speedup is not None and not row.wrong}
    targets = [
        sound_rows(rows),
        at_least("never slower than the best peer", speedups, 1.0),
        mean_at_least(speedups.values(), 5.0),
    ]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(render(rows, records, lines, targets))


def _arguments() -> argparse.Namespace:
    parser = contest_parser(__doc__, DEFAULT_DATASETS, "operations")
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--features", nargs="+", type=int, default=[32, 128])
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

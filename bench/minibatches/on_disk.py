"""Sampled epochs with features on disk, inside a hard limit of memory: ``python -m bench.minibatches.on_disk --work FOLDER``.

The graph is R-MAT with random features and labels. The limit is a part of the features' bytes, or stated, and holds for all memory of a
process and for the page cache of the files that it reads. Every contestant trains the same model by Adam on as many batches as it is
given, in a process and a control group of its own; before each turn the system's cache drops the files. "s / batch" is the median over the
turns. "ready" is everything before the first epoch: imports, the graph, and for sagann the score, the hot tier, and a
batch that compiles. Peers get fewer batches where theirs take minutes. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import Any, NamedTuple

from bench.epochs.graphs import specification_of
from bench.pages import command_line, head, mebibytes, parser_of, row
from bench.size.limit import Ended, generate, print_errors, run_limited
from bench.workers import ROOT
from sagann.byte_size import format_bytes, parse_bytes
from sagann.runtime.processor import processor_name

LIMIT_SHARE = 4
HOT_SHARE = 4
NUM_CLASSES = 40
COLUMNS = (
    "contestant | outcome | batches | s / batch | it / sagann | edges / batch | rows / batch | ready s | held MiB"
)


class Turn(NamedTuple):
    ended: Ended
    report: dict[str, Any]
    "The report of its worker; empty where the worker ended before it."


def main() -> int:
    """Generate, let the contestants train in turns, report; 0 where sagann lives."""
    options = _options()
    folder = dataset_of(options)
    feature_bytes = (folder / "features.npy").stat().st_size
    limit_bytes = options.limit or feature_bytes // LIMIT_SHARE
    hot_bytes = options.hot or limit_bytes // HOT_SHARE
    print(f"`{command_line('bench.minibatches.on_disk')}`; {processor_name()}.\n")
    print(
        f"R-MAT, {int(options.vertices):,} vertices, {int(options.edges):,} edges; {format_bytes(feature_bytes)} of features, a limit of "
        f"{format_bytes(limit_bytes)}, a hot tier of {format_bytes(hot_bytes)}. {len(options.sample)}-layer SAGE, hidden {options.hidden}, "
        f"fanouts {', '.join(map(str, options.sample))}, batches of {options.batch_size} seeds, {options.threads} threads; {options.rounds} rounds.\n"
    )
    peers = [] if options.alone else ["pyg", *(["dgl"] if options.dgl else [])]
    turns: dict[str, list[Turn]] = {name: [] for name in ("sagann", *peers)}
    for _ in range(options.rounds):
        for name in turns:
            turns[name].append(_run(name, folder, limit_bytes, hot_bytes, options))
    print("\n".join([*rows_of(turns), "", *tiers_of(turns)]))
    print_errors((name, turn.ended) for name, each in turns.items() for turn in each)
    return 0 if all(turn.report for turn in turns["sagann"]) else 1


def _run(name: str, folder: Path, limit_bytes: int, hot_bytes: int, options: argparse.Namespace) -> Turn:
    asked = specification_of("sage", layers=len(options.sample), fanouts=options.sample, classes=NUM_CLASSES)
    asked |= {each: getattr(options, each) for each in ("threads", "batch_size", "hidden")}
    asked |= {"system": name, "folder": str(folder.absolute()), "hot_bytes": hot_bytes}
    asked |= {"batches": options.batches if name == "sagann" else options.peer_batches}
    script = ["-m", "bench.minibatches.on_disk_worker"]
    command = (
        [options.dgl, str(ROOT / "bench/standalone/dgl_on_disk.py")] if name == "dgl" else [sys.executable, *script]
    )
    (ended,) = run_limited([*command, json.dumps(asked)], folder, limit_bytes, options.threads)
    lines = [line for line in ended.output.splitlines() if line.startswith("{")]
    return Turn(ended=ended, report=json.loads(lines[-1]) if lines else {})


def rows_of(turns: dict[str, list[Turn]]) -> list[str]:
    ours = _batch_s(turns["sagann"])
    rows = [head(COLUMNS, words=("outcome",))]
    for name, each in turns.items():
        ended, seconds = each[-1].ended, _batch_s(each)
        cells = [name, ended.outcome, *["-"] * 6]
        if seconds is not None:
            report = each[-1].report
            counts = [f"{report[what] / report['batches']:,.0f}" for what in ("edges", "rows")]
            ratio = f"{seconds / ours:.1f}" if ours else "-"
            cells[2:] = [str(report["batches"]), f"{seconds:.2f}", ratio, *counts, f"{report['ready_s']:.0f}"]
        rows.append(row([*cells, mebibytes(ended.own_bytes)]))
    return rows


def tiers_of(turns: dict[str, list[Turn]]) -> list[str]:
    """The bytes that sagann read from each tier, and its stages."""
    found = [turn.report for turn in turns["sagann"] if turn.report]
    if not found:
        return []
    report = found[-1]
    tiers = ", ".join(f"{num_bytes / 2**20:,.0f} MiB {name}" for name, num_bytes in report["tiers"].items())
    stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in report["stages"].items())
    preparing = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report["preparing"].items())
    return [
        f"sagann's {report['batches']} batches: {tiers}; {report['reads']:,} "
        f"reads of {report['read_bytes'] / 2**20:,.0f} MiB with the gaps between rows; {report['hit_rate']:.1%} of the rows from the hot tier. Work of "
        f"the stages: {stages}. Before the first epoch: {preparing}."
    ]


def _batch_s(turns: Sequence[Turn]) -> float | None:
    """Median seconds of a batch, over the turns that came to their end."""
    seconds = [turn.report["seconds"] / turn.report["batches"] for turn in turns if turn.report]
    return median(seconds) if seconds else None


def dataset_of(options: argparse.Namespace) -> Path:
    """The folder of the graph, generated where it is not there yet."""
    folder: Path = options.work / f"on-disk-{int(options.vertices)}-{options.features}"
    counts = {name: getattr(options, name) for name in ("vertices", "edges", "features")}
    generate(folder, counts | {"classes": NUM_CLASSES})
    return folder


def _options() -> argparse.Namespace:
    size = partial(parse_bytes, where="size")
    options = parser_of(
        __doc__,
        {"vertices": 6e6, "edges": 48e6, "features": 256, "batch_size": 1024, "hidden": 256}
        | {"threads": 2, "rounds": 1, "work": Path(gettempdir()), "dgl": None},
        sample=([25, 10], "fanouts"),
        batches=(32, "batches that sagann trains"),
        peer_batches=(1, "batches that each peer trains"),
        limit=(None, "of each control group; a quarter of the features by default", size),
        hot=(None, "size of sagann's hot tier; a quarter of the limit by default", size),
        alone=(False, "sagann without its peers"),
    ).parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    raise SystemExit(main())

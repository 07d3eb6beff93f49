"""The page of sampled epochs on a device: who is the fastest, seconds of every contestant, and where sagann's seconds go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.timing import median_ratio

SYSTEMS = ("sagann", "pyg")
EXPLAINED = """\
Contestants:

- `copied`: features lie in the host's memory. The processor gathers those of a batch, and they are copied with the batch. This is the default
  of `sagann.MiniBatches(device="cuda")`.
- `hot 10%`: a `DeviceFeatures` keeps the 10% of the rows with the highest score `vip` on the device. The device reads the others in place, from
  pinned memory of the host.
- `edges 100%`: the device samples, with so much of the edges in its memory; it reads the others in place. Else the processor samples.
- `4 threads`: so many threads sample, and so many load features; 1 by default.
- `pyg:8 workers`: a `NeighborLoader` with so many processes, which stay between epochs, and pinned memory. Batches are copied with
  `non_blocking=True`. PyG samples a vertex once, and not again for every hop, which gives fewer edges.
- `resident`: all features lie on the device, which takes the rows of each batch.

"it / sagann" is the median over rounds of a contestant over sagann's first one in the same round. *Alone* has the seconds of sagann's stages in
an epoch, each by itself on one thread, until the device is done; `calls` is the part of `train` until the host has queued the step. The
bottleneck is the stage with the most seconds."""


@dataclass(kw_only=True)
class Measured:
    """What the contestants did with a task."""

    caption: str
    "Model and fanouts."
    turns: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    "For each contestant, what its worker said of each epoch."
    alone: dict[str, dict[str, float]] = field(default_factory=dict)
    "For contestants of sagann that sample on one thread: seconds of stages, each by itself."
    failures: dict[str, str] = field(default_factory=dict)
    "Why a contestant did not run."


def page_of(measured: Sequence[Measured], header: Sequence[str]) -> str:
    """The page in Markdown.

    Args:
        measured: the tasks that are done.
        header: paragraphs that say what was run, and where.
    """
    lines = ["# Sampled epochs on a CUDA device", "", *summary_of(measured), ""]
    lines += [line for paragraph in (*header, EXPLAINED) for line in (paragraph, "")]
    return "\n".join([*lines, *(line for each in measured for line in tables_of(each))])


def summary_of(measured: Sequence[Measured]) -> list[str]:
    """For each task, the fastest contestant of sagann and of PyG, with features in the host's memory and on the device."""
    return [line for each in measured for line in _compared(each)]


def _compared(measured: Measured) -> list[str]:
    seconds = _seconds(measured)
    lines = []
    for place, is_there in (
        ("features in the host's memory or partly hot", False),
        ("all features on the device", True),
    ):
        best = {}
        for system in SYSTEMS:
            names = [name for name in seconds if name.startswith(system) and _is_resident(name) == is_there]
            if names:
                best[system] = min(names, key=lambda name: median(seconds[name]))
        if len(best) == len(SYSTEMS):
            ours, theirs = best["sagann"], best["pyg"]
            lines.append(
                f"- {measured.caption}, {place}: `{ours}` {median(seconds[ours]):.3f} s, `{theirs}` {median(seconds[theirs]):.3f} s; "
                f"sagann is {median_ratio(seconds[theirs], seconds[ours]):.2f} times as fast."
            )
    return lines or [f"- {measured.caption}: not compared, because not both sagann and PyG ran."]


def _is_resident(name: str) -> bool:
    """Whether a contestant has all features on the device."""
    return "resident" in name or "hot 100%" in name


def _seconds(measured: Measured) -> dict[str, list[float]]:
    return {name: [turn["seconds"] for turn in turns] for name, turns in measured.turns.items() if turns}


def tables_of(measured: Measured) -> list[str]:
    """All tables of a task, and what did not run."""
    parts = [[f"{measured.caption}:"], epoch_rows(measured)]
    if measured.alone:
        parts += [["Alone:"], alone_rows(measured)]
    names: dict[str, list[str]] = {}
    for name, why in measured.failures.items():
        names.setdefault(why, []).append(f"`{name}`")
    if names:
        parts.append([f"- {', '.join(each)} did not run: {why}." for why, each in names.items()])
    return [line for part in parts for line in [*part, ""]]


def epoch_rows(measured: Measured) -> list[str]:
    """A row for each contestant."""
    seconds = _seconds(measured)
    first = next((name for name in seconds if name.startswith("sagann")), None)
    rows = [
        "| contestant | s / epoch | from | to | edges / epoch | loss | it / sagann |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, own in seconds.items():
        turns = measured.turns[name]
        ratio = "-" if first is None else f"{median_ratio(own, seconds[first]):.2f}"
        cells = [name, *(f"{value:.3f}" for value in (median(own), min(own), max(own)))]
        cells += [f"{median(turn['edges'] for turn in turns):,.0f}", f"{turns[-1]['loss']:.3f}", ratio]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def alone_rows(measured: Measured) -> list[str]:
    """Seconds of stages, each by itself, with the slowest one."""
    names = [name for name in next(iter(measured.alone.values())) if name not in ("calls", "train")]
    headings = ["contestant", *names, "train", "calls", "bottleneck", "s / epoch", "epoch / slowest"]
    rows = [f"| {' | '.join(headings)} |", "|---" + "|--:" * (len(headings) - 1) + "|"]
    for name, seconds in measured.alone.items():
        stages = {stage: value for stage, value in seconds.items() if stage != "calls"}
        slowest = max(stages, key=lambda stage: stages[stage])
        epoch_s = median(turn["seconds"] for turn in measured.turns[name])
        cells = [name, *(f"{seconds[stage]:.3f}" for stage in (*names, "train", "calls"))]
        cells += [slowest, f"{epoch_s:.3f}", f"{epoch_s / stages[slowest]:.2f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return rows

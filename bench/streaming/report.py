"""The report of the streaming benchmark: a table, where the seconds went, and each target reached or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from bench.epochs.report import Verdict, at_least, at_most
from bench.streaming.contest import CHECKED_EPOCHS, Measured, largest_difference
from bench.streaming.worker import LIMITED, SHARE, WAYS
from bench.timing import median_ratio

Tasks = Mapping[tuple[str, str], Mapping[str, Measured]]
"By dataset and model, every way."
HEADER = (
    "| dataset | model | epoch | s | times P = 1 folded | expected s | hidden | P | budget MiB | planned MiB | measured MiB | on host MiB "
    "| loaded MiB | stored MiB | loss differs by | |\n"
    "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"
)
PARTS_HEADER = (
    "| dataset | model | epoch | recorded s | steps | in steps s | loads and stores | in these s | in neither s |\n"
    "|---|---|---|--:|--:|--:|--:|--:|--:|"
)
PARTS_NOTES = """\
Where the seconds of one epoch went, recorded after the first ones. In neither is what comes between steps and copies, and the
optimizer's step; on disk, copies run beside steps."""
NOTES = f"""\
Seconds are the median over rounds in alternation; a ratio is the median of the rounds'. *Expected* is the forecast, made
before the first epoch from the machine's rates and steps timed on a part of the graph; *hidden* the part of copying or
computing, whichever is shorter, that ran beside the other in an epoch; within memory nothing does. The budget is 1/{SHARE} of what
the plan of P = 1 with the loss folded takes. *Planned* is the peak of blocks and temporaries; loaded and stored are an
epoch's, by plan. At P = 1 features and edges count as planned and loaded, though they are read where they lie. *Measured*
is the peak of the first {CHECKED_EPOCHS + 1} epochs above the moment before; gradients and Adam's moments are in it, and
what the C library keeps. With the host in RAM, what is *on host* (stored blocks, each once, and what is gathered once for all epochs) is in it as well. Losses are
compared with the engine's until after {CHECKED_EPOCHS} epochs. What is on disk is cached by the system as far as its memory allows.
A target with inf was not met because nothing ran, or only with more than 1/{SHARE}."""
RAM_TARGET = {("reddit-middle", "gated-gcn"), ("reddit-middle", "gcn")}
"Where the time of a host in RAM has a target."


def rows_of(dataset: str, model: str, ways: Mapping[str, Measured]) -> list[str]:
    """A line of the table for every way."""
    return [f"| {dataset} | {model} | {WAYS[way]} | " + " | ".join(_cells(ways, way)) + " |" for way in ways]


def parts_of(dataset: str, model: str, ways: Mapping[str, Measured]) -> list[str]:
    """A line of the table of parts for every way of which they are known."""
    lines = []
    for way, run in ways.items():
        if (parts := run.recorded) is not None:
            busy_s = parts.compute_s + parts.copy_s - parts.hidden * min(parts.compute_s, parts.copy_s)
            lines.append(
                f"| {dataset} | {model} | {WAYS[way]} | {parts.seconds:.4g} | {parts.num_steps} | {parts.compute_s:.4g} "
                f"| {parts.num_copies} | {parts.copy_s:.4g} | {parts.seconds - busy_s:.3g} |"
            )
    return lines


def _cells(ways: Mapping[str, Measured], way: str) -> list[str]:
    run, ratio = ways[way], ratio_of(ways, way)
    plan, is_checked = run.planned, bool(run.losses and ways["engine"].losses)
    return [
        f"{median(run.turns):.4g}" if run.turns else "-",
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if plan is None else f"{plan.expected_s:.4g}",
        "-" if run.recorded is None or way == "ram" else f"{run.recorded.hidden:.0%}",
        "-" if plan is None else str(plan.num_intervals),
        "-" if plan is None else _mebibytes(plan.budget_bytes),
        "-" if plan is None else _mebibytes(plan.peak_bytes),
        _mebibytes(run.peak_bytes if run.losses else None),
        "-" if plan is None else _mebibytes(plan.host_bytes),
        "-" if plan is None else _mebibytes(plan.loaded_bytes),
        "-" if plan is None else _mebibytes(plan.stored_bytes),
        f"{largest_difference(run, ways['engine']):.1e}" if is_checked else "-",
        _remark(run),
    ]


def _mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.1f}"


def _remark(run: Measured) -> str:
    said = [] if run.outcome == "ok" else [run.outcome]
    plan = run.planned
    if plan is not None and plan.is_raised:
        said.append(f"1/{SHARE}, {_mebibytes(plan.wanted_bytes)} MiB, cannot be met; this is the least that can")
    return "; ".join(said)


def ratio_of(ways: Mapping[str, Measured], way: str) -> float | None:
    """How many times as long as P = 1 with the loss folded a way takes; None where either did not run to the end."""
    ours, dense = ways[way].turns, ways["folded"].turns
    return median_ratio(list(ours), list(dense)) if ours and dense else None


def verdicts(tasks: Tasks) -> list[Verdict]:
    """Every target. What did not run, or only with more than its share, misses."""
    ram, disk = ({key: _times(ways, way) for key, ways in tasks.items()} for way in LIMITED)
    return [
        at_most(
            f"RAM host at 1/{SHARE} of the working set: at most 1.3x the P = 1 epoch (gated GCN and GCN on reddit-middle)",
            {key: times for key, times in ram.items() if key in RAM_TARGET},
            1.3,
        ),
        at_most("disk: at most 2x", disk, 2.0),
        at_most("forecast: within 15%", _off(tasks), 0.15),
        at_least(
            "hidden of copying or computing, whichever is shorter, host on disk: at least 85%",
            {
                key: 0.0 if (parts := ways["disk"].recorded) is None else parts.hidden
                for key, ways in _by_way(tasks, "disk").items()
            },
            0.85,
        ),
        at_most(
            "measured peak at most budget, host on disk",
            {key: _share(ways["disk"]) for key, ways in tasks.items()},
            1.0,
        ),
        at_most(
            "measured peak at most budget and what lies on the host, host in RAM",
            {key: _share(ways["ram"], in_memory=True) for key, ways in tasks.items()},
            1.0,
        ),
    ]


def _by_way(tasks: Tasks, way: str) -> Tasks:
    """The tasks that ran in some way, which their models' names tell."""
    return {
        (dataset, f"{model}, {WAYS[way]}"): {way: ways[way]}
        for (dataset, model), ways in tasks.items()
        if ways[way].turns
    }


def _off(tasks: Tasks) -> dict[tuple[str, str], float]:
    """By how much forecasts were off, of what was measured."""
    found = {}
    for way in ("folded", *LIMITED):
        for key, ways in _by_way(tasks, way).items():
            run = ways[way]
            assert run.planned is not None
            found[key] = abs(run.planned.expected_s / median(run.turns) - 1)
    return found


def _times(ways: Mapping[str, Measured], way: str) -> float:
    plan, ratio = ways[way].planned, ratio_of(ways, way)
    return math.inf if ratio is None or plan is None or plan.is_raised else ratio


def _share(run: Measured, *, in_memory: bool = False) -> float:
    """Of what may be taken, how much was; with what lies on the host where that is in the same memory."""
    plan = run.planned
    if plan is None or plan.budget_bytes is None:
        return math.inf
    return run.peak_bytes / (plan.budget_bytes + (plan.host_bytes if in_memory else 0))

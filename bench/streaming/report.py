"""The report of the streaming benchmark: a table, and where the seconds went."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from bench.streaming.contest import CHECKED_EPOCHS, Measured, largest_difference
from bench.streaming.worker import SHARE, WAYS
from bench.timing import median_ratio

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
compared with the engine's until after {CHECKED_EPOCHS} epochs. What is on disk is cached by the system as far as its memory allows."""


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

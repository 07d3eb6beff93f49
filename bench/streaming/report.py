"""The report of the streaming benchmark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from bench.contest import Turns
from bench.pages import figure, head, mebibytes, row
from bench.streaming.worker import SHARE, WAYS
from bench.timing import median_ratio

CHECKED_EPOCHS = 3
"Losses are compared until after so many."
COLUMNS = (
    *(
        "dataset",
        "model",
        "epoch",
        "s",
        "times P = 1 folded",
        "expected s",
        "hidden",
        "P",
        "budget MiB",
        "planned MiB",
    ),
    *("measured MiB", "on host MiB", "loaded MiB", "stored MiB", "loss differs by", " "),
)
HEADER = head(COLUMNS, words=("model", "epoch", " "))
NOTES = f"""\
Seconds are the median over rounds in alternation; a ratio is the median of the rounds'. *Expected* is the forecast, made
before the first epoch from the machine's rates and steps timed on a part of the graph; *hidden* the part of copying or
computing, whichever is shorter, that ran beside the other in an epoch; within memory nothing does. The budget is 1/{SHARE} of what
the plan of P = 1 with the loss folded takes. *Planned* is the peak of blocks and temporaries; loaded and stored are an
epoch's, by plan. At P = 1 features and edges count as planned and loaded, though they are read where they lie. *Measured*
is the peak of the first {CHECKED_EPOCHS + 1} epochs above the moment before; gradients and Adam's moments are in it, and
what the C library keeps. With the host in RAM, what is *on host* (stored blocks, each once, and what is gathered once for all epochs) is in it as well. Losses are
compared with the engine's until after {CHECKED_EPOCHS} epochs. What is on disk is cached by the system as far as its memory allows."""


def rows_of(dataset: str, model: str, turns: Turns) -> list[str]:
    """A line of the table for every way."""
    seconds = {way: [median(turn["seconds"]) for turn in each] for way, each in turns.answers.items()}
    engine = turns.first.get("engine")
    found = []
    for way, name in WAYS.items():
        first: Mapping[str, Any] = turns.first.get(way, {})
        plan, hidden = first.get("planned") or {}, first.get("hidden")
        compared = "folded" in seconds and way in seconds
        cells = [
            figure(median(seconds[way]) if way in seconds else None, ".4g"),
            figure(median_ratio(seconds[way], seconds["folded"]) if compared else None),
            figure(plan.get("expected_s"), ".4g"),
            "-" if hidden is None or way == "ram" else f"{hidden:.0%}",
            figure(plan.get("P"), "d"),
            *(mebibytes(plan.get(key), ".1f") for key in ("budget", "peak")),
            mebibytes(first.get("peak_bytes"), ".1f"),
            *(mebibytes(plan.get(key), ".1f") for key in ("on host", "loaded", "stored")),
            f"{_largest_difference(first, engine):.1e}" if first and engine else "-",
        ]
        remarks = [turns.failures[way].outcome] if way in turns.failures else []
        if plan and plan["wanted"] != plan["budget"]:
            remarks.append(
                f"1/{SHARE}, {mebibytes(plan['wanted'], '.1f')} MiB, cannot be met; this is the least that can"
            )
        found.append(row([dataset, model, name, *cells, "; ".join(remarks)]))
    return found


def _largest_difference(ours: Mapping[str, Any], engine: Mapping[str, Any]) -> float:
    """The largest relative difference of the losses."""
    pairs = zip(ours["losses"], engine["losses"], strict=False)
    return max((abs(a - b) / abs(b) for a, b in pairs), default=math.nan)

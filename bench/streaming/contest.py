"""All ways to run an epoch of one model on one graph: the first epochs of each, and then turns in alternation."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median

from bench.streaming.worker import WAYS, Planned, Recorded
from bench.workers import Worker, WorkerEndedError

CHECKED_EPOCHS = 3
"Losses are compared until after so many."
TURN_S = 0.5
"Short epochs are repeated within a turn until they take this long together, in seconds."


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One way to run an epoch, measured."""

    outcome: str = "ok"
    "Or how its worker ended before its time."
    planned: Planned | None = None
    "What its plan says; the engine has none."
    peak_bytes: int = 0
    "The most that the first epochs took above the moment before."
    recorded: Recorded | None = None
    "Where the seconds of an epoch went; of the engine it is not known."
    losses: tuple[float, ...] = ()
    "Before the first step and after each."
    turns: tuple[float, ...] = field(default=())
    "Median seconds of an epoch, by round."


def measure(start: Callable[[str], Worker], rounds: int) -> dict[str, Measured]:
    """Measure every way.

    Args:
        start: starts a way's worker.
        rounds: turns of each in alternation.
    """
    found: dict[str, Measured] = {}
    with ExitStack() as stack:
        workers: dict[str, tuple[Worker, int]] = {}
        for way in WAYS:
            try:
                worker = stack.enter_context(start(way))
                first = worker.ask({"first": CHECKED_EPOCHS + 1})
            except WorkerEndedError as end:
                found[way] = Measured(outcome=_said(way, end))
                continue
            workers[way] = worker, _repetitions(min(first["seconds"]))
            found[way] = Measured(
                planned=None if first["planned"] is None else Planned(**first["planned"]),
                peak_bytes=first["peak_bytes"],
                recorded=None if first["recorded"] is None else Recorded(**first["recorded"]),
                losses=tuple(first["losses"]),
            )
        for _ in range(rounds):
            for way, (worker, epochs) in list(workers.items()):
                try:
                    seconds = median(worker.ask({"turn": epochs})["seconds"])
                except WorkerEndedError as end:
                    found[way] = replace(found[way], outcome=_said(way, end), turns=())
                    del workers[way]
                    continue
                found[way] = replace(found[way], turns=(*found[way].turns, seconds))
    return found


def largest_difference(ours: Measured, engine: Measured) -> float:
    """The largest relative difference of the losses."""
    pairs = zip(ours.losses, engine.losses, strict=False)
    return max((abs(a - b) / abs(b) for a, b in pairs), default=math.nan)


def _repetitions(seconds: float) -> int:
    return max(1, min(20, math.ceil(TURN_S / max(seconds, 1e-6))))


def _said(way: str, end: WorkerEndedError) -> str:
    print(f"{way}: {end}", file=sys.stderr, flush=True)
    return end.outcome

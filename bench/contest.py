"""A contest: every contestant alone first, for its memory and its first run, then the best of each system together.

Alone, a contestant has the machine's memory to itself, so that one that does not fit has itself to blame. Together,
each in its own process, they run in alternation, so that whatever else the machine does hits them alike. Every
measurement is a line of a file, so that an interrupted contest continues where it was.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.workers import Worker, WorkerEndedError

Record = dict[str, Any]
NEARLY_BEST = 1.25
"A system's variants that are this close to its best are timed in alternation too, at most MOST_OF_A_SYSTEM of them."
MOST_OF_A_SYSTEM = 2
MOST_WAIT_S = 600.0
"Longest wait for an answer where contestants take turns of some epochs or batches, in seconds. Who hangs is left out then."
SLOW_S = 20.0
"Runs that take longer are not repeated alone."


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """Someone who runs."""

    name: str
    "The system, or system:variant."
    command: tuple[str, ...]
    "Starts its worker."

    @property
    def system(self) -> str:
        """sagann, pyg, dgl, floor. What switches something off in sagann is a system of its own."""
        return self.name if self.name.startswith("sagann") else self.name.partition(":")[0]

    @property
    def variant(self) -> str:
        """What follows the colon."""
        return self.name.partition(":")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How much is measured."""

    rounds: int = 7
    "Turns of each contestant in alternation."
    epochs: int = 3
    "Fewest runs in a turn."
    turn_s: float = 0.5
    "Short runs are repeated within a turn until they take this long together, in seconds."
    timeout_s: float = 1800.0
    "Longest wait for a turn, in seconds."
    memory_bytes: int | None = None
    "Memory that a contestant may hold; None for the machine's."


class Results:
    """Measurements in a file of JSON lines, with the settings in the first line.

    Tasks that are complete may come from several commits and machines; one that was cut off is measured anew by another.

    Args:
        path: the file; it is made where there is none.
        settings: of all measurements.
        commit: of this checkout, noted with every measurement.
        processor: of this machine, noted as well.
    Raises:
        ValueError: the file was measured with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], commit: str, processor: str) -> None:
        self.path, self.origin = path, {"commit": commit, "processor": processor}
        self.records: dict[tuple[str, ...], Record] = {}
        lines = _whole_lines(path)
        if not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"settings": dict(settings)}) + "\n")
            return
        before = json.loads(lines[0])["settings"]
        if before != dict(settings):
            differing = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
            raise ValueError(
                f"{path} was measured with other settings: {', '.join(differing)}. Measured with "
                f"{[before.get(key) for key in differing]}, now {[settings.get(key) for key in differing]}. "
                "Give another --results, or the same settings."
            )
        for line in lines[1:]:
            record = json.loads(line)
            self.records[_key(record)] = record

    def find(self, kind: str, dataset: str, task: str, contestant: str = "") -> Record | None:
        """A measurement that was made before, of a task that is complete, or here by this commit."""
        record = self.records.get((kind, dataset, task, contestant))
        complete = ("together", dataset, task, "") in self.records
        return record if record is None or complete or self.origin.items() <= record.items() else None

    def add(self, record: Record) -> None:
        """Keep a measurement."""
        record = record | self.origin
        self.records[_key(record)] = record
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file, which loses a last line that was cut off."""
    if not path.exists():
        return []
    text = path.read_text()
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text)
    return text.splitlines()


def _key(record: Record) -> tuple[str, ...]:
    return record["kind"], record["dataset"], record["task"], record.get("contestant", "")


def run_contest(
    contestants: Sequence[Contestant],
    specification: Callable[[Contestant], Mapping[str, Any]],
    *,
    dataset: str,
    task: str,
    rules: Rules,
    results: Results,
) -> None:
    """Measure what is not yet measured of one task on one dataset.

    Args:
        contestants: who runs.
        specification: what a contestant's worker is told.
        dataset, task: names in the results.
        rules: how much is measured.
        results: where measurements are kept.
    """
    alone = {}
    for contestant in contestants:
        record = results.find("alone", dataset, task, contestant.name)
        if record is None:
            record = {"kind": "alone", "dataset": dataset, "task": task, "contestant": contestant.name}
            record |= _run_alone(contestant, specification(contestant), rules)
            results.add(record)
            _say(f"{dataset} {task} {contestant.name}: {describe(record)}")
        alone[contestant.name] = record
    if results.find("together", dataset, task) is None:
        chosen = chosen_for_alternation(alone)
        seconds = _run_together(
            [contestant for contestant in contestants if contestant.name in chosen],
            {name: median(alone[name]["seconds"]) for name in chosen},
            specification,
            rules,
        )
        results.add({"kind": "together", "dataset": dataset, "task": task, "seconds": seconds})
        shown = ", ".join(
            f"{name} {median(s for turn in turns for s in turn):.4g} s" for name, turns in seconds.items()
        )
        _say(f"{dataset} {task} in alternation: {shown}")


def describe(record: Record) -> str:
    """A line about a measurement alone."""
    if record["outcome"] != "ok":
        return f"{record['outcome']} {record['detail'].strip().splitlines()[-1:] or ''}"
    return f"{median(record['seconds']):.4g} s, {record['peak_bytes'] / 2**20:.0f} MiB above what is loaded"


def chosen_for_alternation(alone: Mapping[str, Record]) -> list[str]:
    """The best of every system and what comes near it; of sagann everything."""
    systems: dict[str, list[tuple[float, str]]] = {}
    for name, record in alone.items():
        if record["outcome"] == "ok":
            system = name if name.startswith("sagann") else name.partition(":")[0]
            systems.setdefault(system, []).append((median(record["seconds"]), name))
    chosen = []
    for variants in systems.values():
        variants.sort()
        chosen += [name for seconds, name in variants[:MOST_OF_A_SYSTEM] if seconds <= NEARLY_BEST * variants[0][0]]
    return chosen


def _run_alone(contestant: Contestant, specification: Mapping[str, Any], rules: Rules) -> Record:
    try:
        with _start(contestant, specification, rules) as worker:
            first = worker.ask({"memory": 1})
            steady = worker.ask({"memory": 2})
            seconds = steady["seconds"]
            if max(seconds) < SLOW_S:
                seconds = worker.ask({"epochs": _repetitions(min(seconds), rules)})["seconds"]
    except WorkerEndedError as end:
        # Results are kept with the project: no paths of this machine.
        print(end.detail, file=sys.stderr)
        return {"outcome": end.outcome, "detail": (end.detail.strip().splitlines() or [""])[-1]}
    return {
        "outcome": "ok",
        **worker.ready,
        "first_s": first["seconds"][0],
        "first_peak_bytes": first["peak_bytes"],
        "peak_bytes": steady["peak_bytes"],
        "process_bytes": max(first["process_bytes"], steady["process_bytes"]),
        # Before any step, and before the third.
        "losses": [_number(first["loss"]), _number(steady["loss"])],
        "seconds": seconds,
    }


def _run_together(
    contestants: Iterable[Contestant],
    expected_s: Mapping[str, float],
    specification: Callable[[Contestant], Mapping[str, Any]],
    rules: Rules,
) -> dict[str, list[list[float]]]:
    """Seconds of every run, by contestant and round. Who does not live through it is left out."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        seconds: dict[str, list[list[float]]] = {}
        for contestant in contestants:
            try:
                worker = stack.enter_context(_start(contestant, specification(contestant), rules))
                worker.ask({"epochs": 2})
            except WorkerEndedError as end:
                _say(f"{contestant.name} does not run beside the others: {end.outcome}")
                continue
            workers[contestant.name], seconds[contestant.name] = worker, []
        for _ in range(rules.rounds):
            for name in list(workers):
                try:
                    turn = workers[name].ask({"epochs": _repetitions(expected_s[name], rules)})
                except WorkerEndedError as end:
                    _say(f"{name} does not run beside the others: {end.outcome}")
                    del workers[name], seconds[name]
                    continue
                seconds[name].append(turn["seconds"])
    return seconds


def take_turns(
    contestants: Iterable[Contestant],
    specification: Callable[[Contestant], Mapping[str, Any]],
    *,
    first: Mapping[str, Any],
    request: Mapping[str, Any],
    rounds: int,
    timeout_s: float = MOST_WAIT_S,
) -> dict[str, list[Record]]:
    """The answers of every contestant to so many requests in alternation, after a first one that is not counted.

    Who ends before its time, or does not answer in time, is left out; the others go on.
    """
    turns: dict[str, list[Record]] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}

        def ask(contestant: Contestant, asked: Mapping[str, Any]) -> None:
            name = contestant.name
            try:
                if name not in workers:
                    worker = Worker(contestant.command, specification(contestant), timeout_s=timeout_s)
                    workers[name] = stack.enter_context(worker)
                    turns[name] = []
                turns[name].append(workers[name].ask(asked))
            except WorkerEndedError as end:
                _say(f"{name} does not run: {end}")
                turns.pop(name, None)

        for contestant in contestants:
            ask(contestant, first)
        for _ in range(rounds):
            for contestant in contestants:
                if contestant.name in turns:
                    ask(contestant, request)
    return {name: answers[1:] for name, answers in turns.items()}


def _start(contestant: Contestant, specification: Mapping[str, Any], rules: Rules) -> Worker:
    return Worker(contestant.command, specification, timeout_s=rules.timeout_s, memory_bytes=rules.memory_bytes)


def results_of(
    contestant: Contestant, specification: Mapping[str, Any], epochs: int, rules: Rules
) -> dict[str, np.ndarray]:
    """What a contestant computes after some runs, for comparing.

    Raises:
        WorkerEndedError: it ended before its time.
    """
    with _start(contestant, specification, rules) as worker:
        worker.ask({"epochs": epochs})
        return _result(worker)


def _result(worker: Worker) -> dict[str, np.ndarray]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "result.npz"
        worker.ask({"result": str(path)})
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files}


def _repetitions(expected_s: float, rules: Rules) -> int:
    if expected_s > SLOW_S:
        return 1
    return max(rules.epochs, min(200, math.ceil(rules.turn_s / max(expected_s, 1e-6))))


def _number(loss: float) -> float | None:
    return None if math.isnan(loss) else loss


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

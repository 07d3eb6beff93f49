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
from typing import Any

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
    def variant(self) -> str:
        """What follows the colon."""
        return self.name.partition(":")[2]


def system_of(name: str) -> str:
    """sagann, pyg, dgl or floor, of a contestant's name. What switches something off in sagann is a system of its own."""
    return name if name.startswith("sagann") else name.partition(":")[0]


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
        turns = take_turns(
            [contestant for contestant in contestants if contestant.name in chosen],
            specification,
            first={"epochs": 2},
            request=lambda name, _: {"epochs": _repetitions(median(alone[name]["seconds"]), rules)},
            rounds=rules.rounds,
            timeout_s=rules.timeout_s,
        )
        seconds = {name: [turn["seconds"] for turn in each] for name, each in turns.answers.items()}
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
            systems.setdefault(system_of(name), []).append((median(record["seconds"]), name))
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
        return {"outcome": end.outcome, "detail": end.last_line}
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """What contestants that took turns answered."""

    first: dict[str, Record]
    "Of each one that started, its first answer, which does not count as a turn."
    answers: dict[str, list[Record]]
    "Of each one that took all of its turns, the answers."
    last: dict[str, Record]
    "Answers to a last question."
    failures: dict[str, WorkerEndedError]
    "How others ended."


def take_turns(
    contestants: Iterable[Contestant],
    specification: Callable[[Contestant], Mapping[str, Any]],
    *,
    first: Mapping[str, Any],
    request: Callable[[str, Record], Mapping[str, Any]],
    rounds: int,
    last: Mapping[str, Mapping[str, Any]] | None = None,
    timeout_s: float = MOST_WAIT_S,
) -> Turns:
    """Ask every contestant a first question, and then one in each round, in alternation.

    Who ends before its time, or does not answer in time, is left out; the others go on.

    Args:
        contestants: who takes turns.
        specification: what a contestant's worker is told.
        first: the first question.
        request: the question of a turn, from a contestant's name and first answer.
        rounds: turns of each.
        last: questions after all turns, by contestant.
        timeout_s: longest wait for an answer.
    """
    answers: dict[str, list[Record]] = {}
    failures: dict[str, WorkerEndedError] = {}
    firsts, lasts = dict[str, Record](), dict[str, Record]()
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}

        def ask(name: str, asked: Mapping[str, Any]) -> list[Record]:
            """The answer; nothing where the worker ends, of which nothing is asked any more."""
            try:
                return [workers[name].ask(asked)]
            except WorkerEndedError as end:
                end_of(name, end)
                return []

        def end_of(name: str, end: WorkerEndedError) -> None:
            _say(f"{name} does not run: {end}")
            failures[name] = end
            workers.pop(name, None)

        for contestant in contestants:
            name = contestant.name
            try:
                started = Worker(contestant.command, specification(contestant), timeout_s=timeout_s)
            except WorkerEndedError as end:
                end_of(name, end)
                continue
            workers[name] = stack.enter_context(started)
            for answer in ask(name, first):
                firsts[name] = answer
        for _ in range(rounds):
            for name in list(workers):
                answers.setdefault(name, []).extend(ask(name, request(name, firsts[name])))
        for name, asked in (last or {}).items():
            if name in workers:
                for answer in ask(name, asked):
                    lasts[name] = answer
    whole = {name: each for name, each in answers.items() if len(each) == rounds}
    return Turns(first=firsts, answers=whole, last=lasts, failures=failures)


def _start(contestant: Contestant, specification: Mapping[str, Any], rules: Rules) -> Worker:
    return Worker(contestant.command, specification, timeout_s=rules.timeout_s)


def _repetitions(expected_s: float, rules: Rules) -> int:
    if expected_s > SLOW_S:
        return 1
    return max(rules.epochs, min(200, math.ceil(rules.turn_s / max(expected_s, 1e-6))))


def _number(loss: float) -> float | None:
    return None if math.isnan(loss) else loss


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

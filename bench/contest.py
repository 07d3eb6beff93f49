"""A contest: every contestant alone first, for its memory and its first run, then the best of each system together.

Alone, a contestant has the machine's memory to itself, so that the others cannot make it fail. Together,
each in its own process, they run in alternation, so that other load on the machine affects them alike. Every
measurement is a line of a file, so that an interrupted contest continues where it was.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.workers import Worker, WorkerEndedError

Record = dict[str, Any]
Commands = Mapping[str, Sequence[str]]
"How to start the worker of each contestant, by its name: system, or system:variant."
Specification = Callable[[str], Mapping[str, Any]]
"The specification for the worker of a contestant, by its name."
NEARLY_BEST = 1.25
"A system's variants that are this close to its best are timed in alternation too, at most MOST_OF_A_SYSTEM of them."
MOST_OF_A_SYSTEM = 2
MOST_WAIT_S = 600.0
"Longest wait for an answer where contestants take turns of some epochs or batches, in seconds. A contestant that hangs is left out then."
SLOW_S = 20.0


def variant_of(name: str) -> str:
    """The variant in a contestant's name, after the colon."""
    return name.partition(":")[2]


def system_of(name: str) -> str:
    """sagann, pyg, dgl or floor, of a contestant's name. Each variant of sagann is a system of its own."""
    return name if name.startswith("sagann") else name.partition(":")[0]


class Rules(NamedTuple):
    rounds: int = 7
    epochs: int = 3
    "Fewest runs in a turn."
    turn_s: float = 0.5
    "Short runs are repeated within a turn until they take this long together, in seconds."
    timeout_s: float = 1800.0
    "Longest wait for a turn, in seconds."


class Results:
    """Measurements in a file of JSON lines, with the settings in the first line.

    Tasks that are complete may come from several commits and machines; one that was cut off is measured anew by another.
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
            self.records[key_of(record)] = record

    def find(self, kind: str, dataset: str, task: str, contestant: str = "") -> Record | None:
        """An earlier measurement of a complete task, or of this commit on this machine."""
        record = self.records.get((kind, dataset, task, contestant))
        complete = ("together", dataset, task, "") in self.records
        return record if record is None or complete or self.origin.items() <= record.items() else None

    def add(self, record: Record) -> None:
        record = record | self.origin
        self.records[key_of(record)] = record
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


def key_of(record: Record) -> tuple[str, ...]:
    """The key of a measurement: kind, dataset, task and contestant."""
    return record["kind"], record["dataset"], record["task"], record.get("contestant", "")


def run_contest(
    commands: Commands, specification: Specification, *, dataset: str, task: str, rules: Rules, results: Results
) -> None:
    """Measure what is not yet measured of one task on one dataset."""
    alone = {}
    for name, command in commands.items():
        record = results.find("alone", dataset, task, name)
        if record is None:
            record = {"kind": "alone", "dataset": dataset, "task": task, "contestant": name}
            record |= _run_alone(command, specification(name), rules)
            results.add(record)
            _say(f"{dataset} {task} {name}: {_described(record)}")
        alone[name] = record
    if results.find("together", dataset, task) is None:
        turns = take_turns(
            {name: commands[name] for name in chosen_for_alternation(alone)},
            specification,
            first={"epochs": 2},
            request=lambda name, _: {"epochs": repetitions(median(alone[name]["seconds"]), rules)},
            rounds=rules.rounds,
            timeout_s=rules.timeout_s,
        )
        seconds = {name: [turn["seconds"] for turn in each] for name, each in turns.answers.items()}
        results.add({"kind": "together", "dataset": dataset, "task": task, "seconds": seconds})
        medians = {name: median(s for turn in turns for s in turn) for name, turns in seconds.items()}
        _say(f"{dataset} {task} in alternation: {', '.join(f'{name} {s:.4g} s' for name, s in medians.items())}")


def _described(record: Record) -> str:
    if record["outcome"] != "ok":
        return f"{record['outcome']} {record['detail'].strip().splitlines()[-1:] or ''}"
    return f"{median(record['seconds']):.4g} s, {record['peak_bytes'] / 2**20:.0f} MiB above what is loaded"


def chosen_for_alternation(alone: Mapping[str, Record]) -> list[str]:
    """The fastest variants of each peer, and all of sagann's."""
    systems: dict[str, list[tuple[float, str]]] = {}
    for name, record in alone.items():
        if record["outcome"] == "ok":
            systems.setdefault(system_of(name), []).append((median(record["seconds"]), name))
    chosen = []
    for variants in map(sorted, systems.values()):
        chosen += [name for seconds, name in variants[:MOST_OF_A_SYSTEM] if seconds <= NEARLY_BEST * variants[0][0]]
    return chosen


def _run_alone(command: Sequence[str], specification: Mapping[str, Any], rules: Rules) -> Record:
    try:
        with Worker(command, specification, timeout_s=rules.timeout_s) as worker:
            first = worker.ask({"memory": 1})
            steady = worker.ask({"memory": 2})
            seconds = steady["seconds"]
            if max(seconds) < SLOW_S:
                seconds = worker.ask({"epochs": repetitions(min(seconds), rules)})["seconds"]
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
        "losses": [None if math.isnan(loss) else loss for loss in (first["losses"][-1], steady["losses"][-1])],
        "seconds": seconds,
    }


class Turns(NamedTuple):
    """The answers of contestants that took turns."""

    first: dict[str, Record]
    "By contestant, the answer before its first turn."
    answers: dict[str, list[Record]]
    "By contestant that took all of its turns, the answers."
    last: dict[str, Record]
    failures: dict[str, WorkerEndedError]


def take_turns(
    commands: Commands,
    specification: Specification,
    *,
    first: Mapping[str, Any],
    request: Callable[[str, Record], Mapping[str, Any]],
    rounds: int,
    last: Mapping[str, Mapping[str, Any]] | None = None,
    timeout_s: float = MOST_WAIT_S,
) -> Turns:
    """Send each contestant a first request, then one in each round, in alternation, and some of them a last one.

    A contestant that ends early, or does not answer in time, is left out; the others go on.
    """
    turns = Turns(first={}, answers={}, last={}, failures={})
    workers: dict[str, Worker] = {}

    @contextmanager
    def surviving(name: str) -> Iterator[None]:
        """Leave out a worker that ends."""
        try:
            yield
        except WorkerEndedError as end:
            _say(f"{name} does not run: {end}")
            turns.failures[name] = end
            workers.pop(name, None)

    with ExitStack() as stack:
        for name, command in commands.items():
            with surviving(name):
                worker = stack.enter_context(Worker(command, specification(name), timeout_s=timeout_s))
                turns.first[name] = worker.ask(first)
                workers[name] = worker
        for _ in range(rounds):
            for name, worker in list(workers.items()):
                with surviving(name):
                    answer = worker.ask(request(name, turns.first[name]))
                    turns.answers.setdefault(name, []).append(answer)
        for name in turns.failures:
            turns.answers.pop(name, None)
        for name, question in (last or {}).items():
            if name in workers:
                with surviving(name):
                    turns.last[name] = workers[name].ask(question)
    return turns


def repetitions(expected_s: float, rules: Rules) -> int:
    """Runs in a turn."""
    if expected_s > SLOW_S:
        return 1
    return max(rules.epochs, min(200, math.ceil(rules.turn_s / max(expected_s, 1e-6))))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

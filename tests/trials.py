"""Trials: tests that harm the program say what they tried and how often, and ``pytest --trials FILE`` counts it.

A test marked ``tries("kill")`` is one trial of that kind, or as many as it states by ``record_property("trials", 60)``. If it passes,
each trial had the outcome that :data:`KINDS` promises. The counts become a table of docs/performance.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

KINDS = {
    "kill": (
        "kill -9 of a run: at random instants, while checkpoints are written, in the midst of a streamed epoch",
        "the resumed run ends bitwise as one that was never killed",
    ),
    "kill sampled": (
        "kill -9 of a run on mini-batches, of vertices or of graphs, without and with a hot tier, at random instants",
        "the resumed run ends bitwise as one that was never killed, also from within an epoch",
    ),
    "kill import": (
        "kill -9 of an import at random instants",
        "no half dataset opens, an older one stays whole, and the next import cleans up and succeeds",
    ),
    "terminate": (
        "SIGTERM once or twice: to training, to the use of a model, to an import",
        "exit code 143, and nothing half made is left; a run can be resumed",
    ),
    "interrupt": (
        "Ctrl-C once or twice: while starting, importing modules, training",
        "exit code 130; the first lets the epoch end and saves it, and the resumed run ends bitwise as an undisturbed one",
    ),
    "disk": (
        "a disk that fills up, a limit on the size of files",
        "exit code 2 and a message that names the file; what was saved stays, and with room the run goes on bitwise",
    ),
    "spill": (
        "spilled blocks cut, removed or changed in the midst of an epoch",
        "exit code 2 and a message that names the file; no spill folder is left",
    ),
    "flip": (
        "one bit of a dataset changed so that its value could be one",
        "exit code 2 and a message that names the file and the damaged part",
    ),
    "no file": (
        "pipes and folders in the place of files",
        "exit code 2, and a message that names it",
    ),
    "rights": (
        "files and folders that the user may not read or write",
        "exit code 2 and a message that names it",
    ),
    "foreign run": (
        "a run folder that names a Python file as its model",
        "the file is not executed unless the user names it too",
    ),
    "network": (
        "the connection of two hosts cut, slowed, and cut for a while; a worker of one host killed, stopped, or out of memory",
        "all workers end in time with an error that names the lost one, or go on; then the run ends bitwise as an undisturbed one",
    ),
    "limit": (
        "a hard limit of memory, little above the budget or what the machine has",
        "training, evaluation, predictions and embeddings survive; the same work without a budget is killed",
    ),
}
"What is tried and what it does, by the kind that marks name."


def note_kinds(items: Iterable[pytest.Item]) -> None:
    """Have the reports of marked tests name the kind; reports also reach this process from others."""
    for item in items:
        if mark := item.get_closest_marker("tries"):
            (kind,) = mark.args
            assert kind in KINDS, f"{item.nodeid} tries '{kind}', expected one of {', '.join(KINDS)}"
            item.user_properties.append(("tries", kind))


class Trials:
    """A plugin that counts trials by kind and outcome, and writes them into a file at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._as_promised: Counter[str] = Counter()
        self._otherwise: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's trials when it has run, or when it could not."""
        found: dict[str, Any] = dict(report.user_properties)
        if "tries" not in found or report.skipped:
            return
        if report.failed:
            self._otherwise[found["tries"]] += 1
        elif report.when == "call":
            self._as_promised[found["tries"]] += int(found.get("trials", 1))

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        rows = [
            {
                "tried": tried,
                "outcome": outcome,
                "times": self._as_promised[kind],
                "otherwise": self._otherwise[kind],
            }
            for kind, (tried, outcome) in KINDS.items()
        ]
        self._path.write_text(json.dumps(rows, indent=1) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that asks for the counts."""
    parser.addoption("--trials", type=Path, metavar="FILE", help="count what tests have tried, in a file of JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Count trials if asked to; with several processes, in the one that has the reports of all."""
    path = config.getoption("--trials")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Trials(path))

"""Runs pytest, and what failed once more: alone, one test at a time, in a fresh process. `make test` runs it.

    python -m tests.again [OPTIONS OF PYTEST]

A test that fails beside others and passes alone is unstable: it is named at the end, and the run passes. A run fails where a test
fails twice, where more than MOST_UNSTABLE tests fail at first, and where a process of pytest crashes or a file cannot be collected.
Tests of a file whose set-up fails count as one: a fixture of the file fails all of them at once.

As a plugin of pytest (``-p tests.again --failures FILE``), it writes the ids of the tests that failed, and whether anything else did.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

MOST_UNSTABLE = 5
"Number of tests that may fail at first. More have a cause in common."
_CRASH = "???"
"What pytest-xdist gives as the phase of a test whose process crashed."


class Failures:
    """The tests that fail, in one file. Runs in the process that has the reports of all.

    Args:
        path: file of JSON that is written at the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._causes: dict[str, str] = {}
        "By id of a test that failed: the id, or its file where its set-up failed."
        self._others = False
        "Whether a process has crashed, or a file could not be collected."

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            file, _, _ = report.nodeid.partition("::")
            self._causes[report.nodeid] = file if report.when == "setup" else report.nodeid
            self._others |= report.when == _CRASH

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._others |= report.failed

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps({"causes": self._causes, "others": self._others}))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's option."""
    parser.addoption(
        "--failures", type=Path, metavar="FILE", help="write the ids of tests that fail into a file of JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Note failures if asked to; with several processes, in the one that has the reports of all."""
    path = config.getoption("--failures")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(path))


def main(arguments: Sequence[str]) -> int:
    """Run pytest, and what failed again; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "failures.json"
        code = _pytest("-p", "tests.again", "--failures", str(path), *arguments)
        if code != pytest.ExitCode.TESTS_FAILED or not path.exists():
            return code
        found = json.loads(path.read_text())
    ids, others = list(found["causes"]), found["others"]
    num_causes = len(set(found["causes"].values()))
    if others or not ids or num_causes > MOST_UNSTABLE:
        why = f"{num_causes} tests or set-ups failed, {MOST_UNSTABLE} at most run again"
        if others:
            why = "a process crashed, or a file cannot be collected"
        _say(f"No test runs again: {why}.")
        return code
    _say("Failed, and runs again, alone:", *ids)
    again = _pytest("-p", "no:xdist", "-p", "no:cacheprovider", *ids)
    if again:
        _say("Failed twice, or could not run again: see above.", *ids)
        return code
    _say("UNSTABLE: failed beside others and passed alone. Mend the test or what it tests:", *ids)
    return 0


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _say(first: str, *ids: str) -> None:
    lines = "".join(f"  {each}\n" for each in ids)
    sys.stdout.write(f"\n==== {first}\n{lines}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

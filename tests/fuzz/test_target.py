"""Some seconds of the target, and its books. The seed is fixed, so that a result depends on the change; `make fuzz` draws new ones."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import target
from tests.fuzz.cases import Case
from tests.fuzz.target import ROOT, Findings, added, fuzz, is_long_work, table


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seconds", [20, pytest.param(60, marks=pytest.mark.thorough)])
def test_no_fault_within_some_seconds(seconds: float, tmp_path: Path) -> None:
    findings = fuzz(seconds, seed=0, corpus=tmp_path)
    assert findings.faults == {}
    assert all(found["cases"] > 0 for found in findings.counts.values())
    assert sum(found["refused"] for found in findings.counts.values()) > 10


def test_a_fault_is_kept_once(tmp_path: Path) -> None:
    findings = Findings()
    for number, said in enumerate(["error 1 in 'a'", "error 2 in 'b'", "another error"]):
        case = Case(kind="NPY arrays", files={"x.npy": bytes([number])})
        findings.add(case.kind, "fault", said, case, tmp_path)
    findings.add("NPY arrays", "accepted", "", case, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert list(findings.faults.values()) == ["error 1 in 'a'", "another error"]
    assert findings.counts["NPY arrays"] == {"cases": 4, "accepted": 1, "refused": 0, "faults": 3}
    assert "| NPY arrays | 4 | 1 | 0 | 3 |" in table(findings.counts)


@pytest.mark.parametrize(("deaths", "starts"), [(0, 1), (2, 3)])
def test_a_process_that_ended_by_itself_is_not_started_anew(
    deaths: int, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def watched(folder: Path, *, seed: int, first: int, seconds: float) -> Iterator[dict[str, Any]]:
        # A single case takes no time: so much is left as before.
        started.append(first)
        (folder / "current").mkdir(exist_ok=True)
        Case(kind="NPY arrays", files={"x.npy": b""}).save(folder / "current")
        has_died = len(started) <= deaths
        yield {
            "number": first,
            "outcome": "fault" if has_died else "refused",
            "said": "",
            "has_died": has_died,
            "processor_s": 2.5,
        }

    monkeypatch.setattr(target, "_watched", watched)
    found = fuzz(60, seed=0, corpus=tmp_path)
    assert found.counts["NPY arrays"]["cases"] == starts
    assert found.processor_s == 2.5 * starts
    assert started == list(range(starts))


def test_counts_of_runs_add_up() -> None:
    counts = Findings().counts
    counts["NPY arrays"] |= {"cases": 4, "accepted": 1, "refused": 3}
    once = added({}, counts, seconds=60, seed=7)
    twice = added(once, counts, seconds=30, seed=8)
    assert (twice["seconds"], twice["seeds"]) == (90, [7, 8])
    assert twice["kinds"]["NPY arrays"] == {"cases": 8, "accepted": 2, "refused": 6, "faults": 0}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[train]\nepochs = 1000", True),
        ("[model]\nlayers = 99", True),
        ("[train]\nepochs = 3", False),
        ("[", False),
    ],
)
def test_configurations_that_ask_for_minutes_are_no_cases(content: str, expected: bool) -> None:
    assert is_long_work(Path("run.toml"), content.encode()) is expected
    assert not is_long_work(Path("run.json"), content.encode())


def test_a_run_that_is_interrupted_adds_what_it_has_counted(tmp_path: Path) -> None:
    results = tmp_path / "fuzz.json"
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "1000", "--seed", "3", "--results", results]
    with subprocess.Popen(
        [*map(str, command), "--corpus", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"Damaging files, seed 3.\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)
    assert process.returncode == 0
    body = json.loads(results.read_text())
    assert body["seeds"] == [3]
    assert body["seconds"] < 10

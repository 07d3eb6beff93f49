from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from sagann.report import probes
from sagann.report.probes import Finding, run_probes


def test_every_part_that_is_needed_works_here() -> None:
    findings = {found.name: found for found in run_probes()}
    assert set(findings) == set(probes._PROBES)
    for found in findings.values():
        assert found.ok or not found.core, found
        assert found.detail
    assert "threading layer" in findings["numba threads"].detail


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Finding]]:
    """Runs lines of Python in place of the probes."""

    def run(*lines: str) -> list[Finding]:
        monkeypatch.setattr(probes, "_COMMAND", (sys.executable, "-c", "\n".join(["import os, sys", *lines])))
        return run_probes()

    return run


def finding(name: str) -> str:
    text = json.dumps({"name": name, "ok": True, "detail": "fine"})
    return f"print({text!r}, flush=True)"


def test_a_crash_is_put_down_to_the_probe_that_ran(run_program: Callable[..., list[Finding]]) -> None:
    findings = run_program(
        finding("numba threads"), "print('a library chats')", "sys.stdout.flush()", "os.kill(os.getpid(), 4)"
    )
    assert [found.name for found in findings] == list(probes._PROBES)
    assert findings[0].ok
    assert not findings[1].ok
    assert findings[1].detail == "the process ended with SIGILL"
    assert findings[2].detail == "not tried after the crash"


def test_an_exit_is_told_with_its_last_words(run_program: Callable[..., list[Finding]]) -> None:
    findings = run_program("sys.exit('libcuda is missing')")
    assert findings[0].detail == "the process ended with exit code 1: libcuda is missing"
    assert not any(found.ok for found in findings)


def test_a_hang_ends(monkeypatch: pytest.MonkeyPatch, run_program: Callable[..., list[Finding]]) -> None:
    monkeypatch.setattr(probes, "_TIMEOUT_S", 0.5)
    findings = run_program("import time", "time.sleep(60)")
    assert findings[0].detail == "the process ended with SIGKILL"


def test_a_probe_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong() -> str:
        raise ValueError("3, expected 4")

    def broken() -> str:
        raise ImportError("no module\nat all")

    monkeypatch.setattr(probes, "_PROBES", {"a": wrong, "b": broken, "CUDA": broken, "c": lambda: "works"})
    probes._main()
    found = [Finding(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert [(each.name, each.ok, each.core) for each in found] == [
        ("a", False, True),
        ("b", False, True),
        ("CUDA", False, False),
        ("c", True, True),
    ]
    assert [each.detail for each in found] == [
        "3, expected 4",
        "ImportError: no module",
        "ImportError: no module",
        "works",
    ]

"""Probes of ``sagann doctor``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sagann.report import probes
from sagann.report.probes import Finding, run_probes


def test_every_part_that_is_needed_works_wherever_it_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files of others that lie in the current folder are not run.
    monkeypatch.chdir(tmp_path)
    for name in ("numba", "torch"):
        Path(f"{name}.py").write_text("raise SystemExit('code of somebody else')")
    findings = {found.name: found for found in run_probes()}
    assert set(findings) == set(probes._PROBES)
    for found in findings.values():
        assert found.ok or not found.core, found
        assert found.detail
    assert "threading layer" in findings["numba threads"].detail


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Finding]]:
    """Runs lines of Python in place of the probes."""

    def run(*lines: str) -> dict[str, Finding]:
        monkeypatch.setattr(probes, "_COMMAND", (sys.executable, "-c", "\n".join(["import os, sys", *lines])))
        return {found.name: found for found in run_probes()}

    return run


def test_a_crash_is_put_down_to_its_probe(run_program: Callable[..., dict[str, Finding]]) -> None:
    found = run_program("print('a library chats\\nfine')", "if sys.argv[1] == 'kernels': os.kill(os.getpid(), 4)")
    assert (found["files"].ok, found["files"].detail) == (True, "fine")
    assert (found["kernels"].ok, found["kernels"].detail) == (False, "the process ended with SIGILL")


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ("sys.exit('libcuda is missing')", "libcuda is missing"),
        ("raise ValueError('3, expected 4')", "3, expected 4"),
        ("raise ImportError('no module')", "ImportError: no module"),
        ("sys.exit(7)", "exit code 7"),
    ],
)
def test_a_probe_that_fails_says_why(
    line: str, detail: str, run_program: Callable[..., dict[str, Finding]]
) -> None:
    assert {(found.ok, found.detail) for found in run_program(line).values()} == {(False, detail)}


def test_a_hang_ends(monkeypatch: pytest.MonkeyPatch, run_program: Callable[..., dict[str, Finding]]) -> None:
    monkeypatch.setattr(probes, "_TIMEOUT_S", 0.5)
    found = run_program("import time", "time.sleep(60)")
    assert found["kernels"].detail == "no answer within 0.5 s"

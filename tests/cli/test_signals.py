"""Signals to a run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sagann.cli.signals import Signals
from tests.cli.test_process import run

SEND = "import os, signal, time; os.kill(os.getpid(), signal.{name}); time.sleep(5)"
HALF_MADE = f"""
try:
    {SEND}
except KeyboardInterrupt:
    raise ImportError("half made") from None
"""


@pytest.mark.parametrize(
    ("source", "name", "code", "word"),
    [
        (HALF_MADE, "SIGINT", 130, "interrupted"),
        (f'exec("{SEND}")', "SIGTERM", 143, "terminated"),
        pytest.param(f'exec("{SEND}")', "SIGINT", 130, "interrupted", marks=pytest.mark.thorough),
        pytest.param(SEND, "SIGINT", 130, "interrupted", marks=pytest.mark.thorough),
        pytest.param(SEND, "SIGTERM", 143, "terminated", marks=pytest.mark.thorough),
    ],
    ids=["other error", "string", "string again", "module", "module again"],
)
def test_a_signal_in_an_import_ends_the_program(
    tmp_path: Path, source: str, name: str, code: int, word: str
) -> None:
    (tmp_path / "model.py").write_text(source.format(name=name))
    found, _, err = run("train", "--data", "demo", "--model", "model.py:Model", cwd=tmp_path)
    assert (found, err) == (code, f"Error: {word}\n")


def test_an_ignored_signal_stays_ignored_and_handlers_come_back() -> None:
    number, before = signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Signals().handled():
            assert signal.getsignal(number) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_the_first_sigterm_stops_a_run_and_a_worker_takes_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_worker in (False, True):
        monkeypatch.setattr("sagann.cli.signals.is_worker", lambda is_worker=is_worker: is_worker)
        signals, stops = Signals(), []
        with signals.handled(), signals.stopping(lambda stops=stops: stops.append(True)):
            signal.raise_signal(signal.SIGTERM)
            if is_worker:
                signal.raise_signal(signal.SIGTERM)
            else:
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGTERM)
        assert (stops, signals.is_terminated) == ([True], True)

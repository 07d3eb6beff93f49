"""Signals to a run, and memory that it cannot have."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.cli.run_settings import merge, settings_of
from sagann.cli.signals import Signals
from sagann.cli.train_run import check_memory, least_bytes
from sagann.config import RunConfig
from sagann.errors import InputError
from sagann.free_space import Memory, require_memory
from sagann.graph import Graph, rmat_graph
from sagann.nn import ModelConfig

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
    command = [sys.executable, "-m", "sagann", "train", "--data", "demo", "--model", "model.py:Model"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (code, f"Error: {word}\n")


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


LOGITS = 4 * 1000 * 3


def settings(**given: Any) -> RunConfig:
    return settings_of(merge({}, {"data": "demo", "device": "cpu", **given}))


def least(graph: Graph, *, is_streamed: bool = False, **fields: Any) -> int:
    return least_bytes(ModelConfig(**fields), graph, is_streamed=is_streamed)


@pytest.fixture
def graph() -> Graph:
    return rmat_graph(1000, 5000, num_features=10, num_classes=3, seed=0)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the machine so many bytes of free memory."""

    def given(available_bytes: int | None) -> None:
        found = Memory(total_bytes=None, available_bytes=available_bytes, limit_bytes=None, limit_used_bytes=None)
        monkeypatch.setattr("sagann.free_space.memory", lambda: found)

    return given


def test_a_run_whose_outputs_cannot_fit_is_refused(graph: Graph, free: Any) -> None:
    free(2**20)
    check_memory(settings(hidden=1000), graph)
    wide = replace(graph, num_classes=1000)
    with pytest.raises(InputError, match=r"for 1000 classes on 1000 vertices.*--memory, which streams the run"):
        check_memory(settings(hidden=16), wide)
    check_memory(settings(hidden=16, memory="1MiB"), wide)
    # The weights of the output are in memory in any case.
    with pytest.raises(InputError, match=r"number them from 0 without gaps\. Else use a smaller"):
        check_memory(settings(hidden=16, memory="1MiB"), replace(graph, num_classes=100_000))


def test_where_memory_is_unknown_nothing_is_refused(free: Any) -> None:
    free(None)
    require_memory(2**70, where="everything", hint="")


def test_weights_and_outputs_are_counted_without_allocation(graph: Graph) -> None:
    weights = 4 * (10 * 16 + 16 + 16 * 3 + 3)
    assert least(graph, hidden=16) == weights + LOGITS
    assert least(graph, hidden=2 * 10**9) > 10**11
    assert least(graph, model="mine.py:Net", hidden=10**9) == LOGITS
    assert least(graph, model="mine.py:Net", is_streamed=True) == 0


def test_a_streamed_run_holds_decisions_of_several_labels_a_split_at_a_time(graph: Graph) -> None:
    several = replace(graph, labels=torch.zeros(1000, 3, dtype=torch.uint8), splits={})
    half = replace(several, splits={"train": torch.arange(1000) < 500})
    found = [least(each, model="mine.py:Net", is_streamed=True) for each in (several, half)]
    assert found == [4 * 1000 * 3, 4 * 500 * 3]

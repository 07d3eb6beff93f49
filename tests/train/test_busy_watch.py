"""A run says once that its threads spin on a busy machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sagann.runtime.spinning import CoreTime
from sagann.train import busy_watch
from sagann.train.reporter import LogReporter
from tests.train.runs import trainer_of


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine whose clock moves on at each look, and that lets the thread wait for half of the time."""
    found = SimpleNamespace(now=0.0, step_s=2.0, waits=0.5)

    def monotonic() -> float:
        found.now += found.step_s
        return found.now

    def core_time() -> CoreTime:
        return CoreTime(ran_s=(1 - found.waits) * found.now, waited_s=found.waits * found.now)

    monkeypatch.setattr(busy_watch, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(busy_watch, "core_time", core_time)
    return found


class Noting(LogReporter):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)


def said(monkeypatch: pytest.MonkeyPatch, *, num_threads: int = 2, **options: object) -> list[str]:
    monkeypatch.setattr("sagann.train.trainer.torch.get_num_threads", lambda: num_threads)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    reporter = Noting()
    trainer_of(epochs=20, reporter=reporter, **options).fit()
    return reporter.messages


def test_a_run_says_it_once(busy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = said(monkeypatch)
    assert "this run waits 50% of its time for a core" in text


def test_a_run_with_other_threads_of_its_own_is_not_judged(
    busy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(monkeypatch, sample=(3, 3), batch_size=8) == []


def test_a_quiet_machine_gives_no_reason(busy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    busy.waits = 0.01
    assert said(monkeypatch) == []


def test_a_short_run_is_not_judged(busy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    busy.step_s = 0.1
    assert said(monkeypatch) == []


def test_one_thread_does_not_spin(busy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, num_threads=1) == []


def test_a_system_that_does_not_tell_is_left_alone(busy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_watch, "core_time", lambda: None)
    assert said(monkeypatch) == []

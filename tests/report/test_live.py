"""The bar of a run in Python: in a terminal and in a notebook, nowhere else, and once."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sagann.errors import InputError
from sagann.report.live import NotebookReporter, live_progress
from sagann.train import TrainConfig, Trainer
from sagann.train.reporter import SilentReporter
from tests.train.runs import Plain, community_graph, seeded_model, trainer_of


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    # A pipe is none the less a pipe.
    monkeypatch.setenv("FORCE_COLOR", "1")


def watched(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal in the place of standard error. pytest puts its own there before each test, so no fixture can."""
    found = Screen()
    monkeypatch.setattr(sys, "stderr", found)
    return found


def trainer(epochs: int = 3, **options: Any) -> Trainer:
    return Trainer(seeded_model(), community_graph(), TrainConfig(epochs=epochs, device="cpu"), **options)


def test_a_terminal_shows_the_bar_once(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watched(monkeypatch)
    trainer().fit()
    last = screen.getvalue().rpartition("\r")[2]
    assert "3/3" in last
    assert "TwoLayers on communities" in last
    assert "val accuracy" in last
    # One line, which is written again: it is never left behind by a line feed.
    assert screen.getvalue().count("\n") == 1


@pytest.mark.parametrize("options", [{"progress": False}, {"reporter": SilentReporter()}])
def test_a_terminal_shows_nothing_where_that_is_asked_for(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = watched(monkeypatch)
    trainer(**options).fit()
    assert screen.getvalue() == ""


def test_what_is_no_terminal_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Screen()
    closed.close()
    for stream in (None, closed, io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        assert live_progress() is None
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stderr", Screen())
    assert live_progress() is None


def test_the_bar_ends_with_a_run_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watched(monkeypatch)
    before = sys.stdout
    with pytest.raises(InputError, match="training diverged"):
        trainer_of(seeded_model(Plain), optimizer="SGD", lr=1e38, weights="last").fit()
    # While a bar is live, both streams are those of the bar.
    assert (sys.stdout, sys.stderr) == (before, screen)
    written = screen.getvalue()
    assert written.endswith("\x1b[?25h"), "the cursor is shown again"


class Cell:
    """What IPython's ``display`` gives for an output that may be replaced."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        assert display_id
        self.update(content, raw=raw)
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        assert set(content) == {"text/plain"}
        self.shown.append(content["text/plain"])


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    found = Cell()
    shell, shown = ModuleType("IPython"), ModuleType("IPython.display")
    shell.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    shown.display = found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return found


def test_a_notebook_shows_the_bar_in_one_output(cell: Cell, capfd: pytest.CaptureFixture[str]) -> None:
    trainer().fit()
    assert "0/3" in cell.shown[0]
    assert "3/3" in cell.shown[-1]
    assert "val accuracy" in cell.shown[-1]
    assert all("\x1b" not in text and "\n" not in text for text in cell.shown)
    assert capfd.readouterr() == ("", "")


def test_a_notebook_is_not_flooded(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr("sagann.report.live.time", SimpleNamespace(monotonic=lambda: clock.now))
    reporter = NotebookReporter()
    bars = reporter._bars()
    task = bars.add_task("bar")
    bars.start()
    for step in range(1, 101):
        clock.now = 10.0 + step / 100
        bars.update(task, completed=step)
    # The first state, four within the second, and the last one.
    bars.stop()
    assert len(cell.shown) in (5, 6)
    bars.stop()
    bars.update(task, completed=1)
    assert len(cell.shown) in (5, 6)

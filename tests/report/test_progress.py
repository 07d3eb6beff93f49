"""Progress bars."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from sagann.errors import InputError
from sagann.import_config import silent
from sagann.report.progress import NotebookReporter, ProgressReporter, import_progress, live_progress
from sagann.report.terminal import Terminal
from sagann.runtime.tiered import TierCounts, Traffic
from sagann.train import EpochProgress, EpochRecord, RunInfo
from sagann.train.reporter import SilentReporter
from tests.train.runs import Plain, seeded_model, trainer_of
from tests.train.test_reporter import WORK

INFO = RunInfo(
    model="gcn",
    data="cora",
    num_vertices=10,
    num_edges=3_000_000,
    num_hops=2,
    epochs=200,
    first_epoch=1,
    monitor="val/accuracy",
    device="cpu",
)


def shown(*, records=(), info=INFO, messages=(), terminal=True, width=160):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    reporter = ProgressReporter(console)
    reporter.on_start(info)
    for record in records:
        (reporter.on_epoch if isinstance(record, EpochRecord) else reporter.on_batch)(record)
    for message in messages:
        reporter.on_message(message)
    reporter.close()
    reporter.close()
    return console.file.getvalue()


def record(epoch, epoch_s, *, accuracy=None):
    metrics = {} if accuracy is None else {"val": {"loss": 1.0, "accuracy": accuracy}}
    return EpochRecord(epoch=epoch, loss=0.5, epoch_s=epoch_s, lr=0.1, num_edges=6_000_000, metrics=metrics)


@pytest.mark.parametrize("width", [80, 160])
def test_the_bar_shows_every_number_and_the_metric_of_the_last_evaluation(width):
    hot, cold = TierCounts(rows=835, num_bytes=835 << 20), TierCounts(rows=165, num_bytes=165 << 10)
    tiered = replace(record(1, 0.25, accuracy=0.75), extra=Traffic(hot=hot, cold=cold).to_json())
    text = shown(records=[tiered], info=replace(INFO, data="/somewhere/deep/down/cora"), width=width)
    assert "gcn on cora" in text
    assert "1/200 250 ms  24M edges/s  loss 0.5000" in text
    assert "hot_rows 835  hot_bytes 835.0 MiB  cold_rows 165" in text
    assert "…" not in text
    text = shown(records=[tiered, record(2, 2.0)], width=width)
    assert "val accuracy 0.7500" in text.rpartition("2/200 2.00 s  3M edges/s  loss 0.5000")[2]


def test_names_and_messages_are_neither_markup_nor_codes():
    text = shown(info=replace(INFO, data="[red]a\x1b[2J"), messages=["checkpoint [epoch-000010.pt] is damaged"])
    assert r"gcn on [red]a\x1b[2J" in text
    assert "checkpoint [epoch-000010.pt] is damaged" in text


def test_a_resumed_run_says_where_it_goes_on():
    assert "Going on" not in shown()
    assert shown(info=replace(INFO, first_epoch=13)).startswith("Going on after epoch 12.\n")
    later = replace(INFO, first_epoch=13, first_batch=7)
    assert shown(info=later, terminal=False).startswith("Going on after batch 7 of epoch 13.\n")


def within(epoch, batch, train_s):
    return EpochProgress(
        epoch=epoch,
        num_batches=1200,
        batch=batch,
        loss=0.25,
        num_labelled=1000 * batch,
        num_edges=1_000_000 * batch,
        train_s=train_s,
    )


@pytest.mark.parametrize("width", [80, 160])
def test_a_long_epoch_has_a_bar_of_its_batches(width):
    text = shown(records=[record(1, 0.25, accuracy=0.75), within(2, 600, 300.0)], width=width)
    assert "1/200 " in text
    assert "250 ms  24M edges/s  loss 0.5000" in text
    assert "val accuracy 0.7500" in text
    assert "epoch 2" in text
    assert "600/1200 2M edges/s  2k seeds/s  loss 0.2500" in text
    assert "…" not in text


def test_batches_of_a_short_epoch_are_not_shown():
    assert "seeds/s" not in shown(records=[within(1, 600, 0.5)])


def test_a_file_gets_a_line_a_minute(monkeypatch):
    clock = iter([0.0, 59.0, 61.0, 61.0, 120.0, 122.0, 122.0])
    monkeypatch.setattr("sagann.report.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    records = [within(1, 10, 59.0), within(1, 11, 61.0), within(1, 12, 120.0), record(1, 122.0)]
    text = shown(records=records, terminal=False)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0] == "epoch 1  batch 11/1200  180k edges/s  180 seeds/s  loss 0.2500"
    assert lines[1] == "epoch 1/200  122.00 s  49.2k edges/s  loss 0.5000"
    assert len(lines) == 3
    assert "1/200" in lines[2]


def test_an_import_has_a_bar_per_stage_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR")
    terminal = Terminal()
    with import_progress(terminal) as progress:
        assert progress is silent
    screen = io.StringIO()
    terminal.err = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with import_progress(terminal) as progress:
        progress(10, None, "edges", "reading edges")
        progress(100, 90, "edges", "reading edges")
        progress(5, 5, "vertices", "writing labels")
    text = screen.getvalue()
    assert "reading edges" in text
    # The total was an estimate, and too low.
    assert "100/100" in text
    assert "5/5" in text
    assert "vertices" in text


def test_what_else_an_epoch_has_stands_below_the_numbers_in_its_units():
    extra = {
        "worker_edges": [300, 100],
        "worker_s": [1.5, 0.025],
        "moved_to": None,
        "worker_bounds": [0, 1, 2, 3, 4],
    }
    text = shown(records=[replace(record(1, 0.25), extra=extra)])
    assert "worker_edges 300, 100  worker_s 1.50 s, 25 ms" in text
    assert "worker_bounds 0, 1, 2, 3, ..." in text
    assert "moved_to" not in text
    text = shown(records=[replace(record(1, 0.25), extra={"mteps": 24.0, **WORK.to_json()})])
    assert "mteps 24  trainers host, accelerator0" in text
    assert WORK.why[:27] in shown(records=[replace(within(1, 300, 2.0), note=WORK.why)])


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


def test_a_terminal_shows_the_bar_once(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watched(monkeypatch)
    trainer_of(epochs=3).fit()
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
    trainer_of(epochs=3, **options).fit()
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
    with pytest.raises(InputError, match="training diverged: the train/loss of epoch 1 is"):
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
    trainer_of(epochs=3).fit()
    assert "0/3" in cell.shown[0]
    assert "3/3" in cell.shown[-1]
    assert "val accuracy" in cell.shown[-1]
    assert all("\x1b" not in text and "\n" not in text for text in cell.shown)
    assert capfd.readouterr() == ("", "")


def test_a_notebook_is_not_flooded(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr("sagann.report.progress.time", SimpleNamespace(monotonic=lambda: clock.now))
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

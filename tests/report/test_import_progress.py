from __future__ import annotations

import io

import pytest
from rich.console import Console

from sagann.report.import_progress import import_progress
from sagann.report.terminal import Terminal
from sagann.storage.progress import silent


def test_nothing_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with import_progress(Terminal()) as progress:
        assert progress is silent


def test_a_bar_per_stage_on_a_terminal() -> None:
    terminal = Terminal()
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


def test_quiet_draws_nothing() -> None:
    terminal = Terminal(quiet=True)
    terminal.err = Console(file=io.StringIO(), force_terminal=True)
    with import_progress(terminal) as progress:
        assert progress is silent

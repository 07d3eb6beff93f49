from __future__ import annotations

import pytest
from rich.table import Table

from sagann.report.terminal import Terminal


@pytest.mark.parametrize("quiet", [False, True])
def test_results_and_notes_go_separate_ways_and_quiet_drops_notes(
    quiet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(quiet=quiet)
    terminal.show("a result")
    terminal.say("a note")
    assert capsys.readouterr() == ("a result\n", "" if quiet else "a note\n")


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "/a/path/[with]/:smile:/" + "x" * 500
    Terminal().show(text)
    assert capsys.readouterr().out == f"{text}\n"


def test_tables_are_not_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "value")
    table.add_row("x" * 60, "y" * 90)
    Terminal().show(table)
    assert "y" * 90 in capsys.readouterr().out


def test_codes_that_a_terminal_obeys_are_written_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    terminal, name = Terminal(), "\x1b[2Ja\u202e"
    escaped = r"\x1b[2Ja\u202e"
    table = Table("class")
    table.add_row(name)
    terminal.show(table)
    terminal.show(f"{name}\nof two lines")
    terminal.say(name)
    captured = capsys.readouterr()
    assert escaped in captured.out
    assert captured.out.endswith(f"{escaped}\nof two lines\n")
    assert captured.err == f"{escaped}\n"

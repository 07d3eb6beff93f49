"""The benchmark of reordering: a row for a graph."""

from __future__ import annotations

import sys

import pytest

from bench.reordering import main


def test_the_table_has_a_row_for_a_graph(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["reordering", "--graphs", "3000,200e3", "--threads", "1"])
    main()
    row = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert row[:3] == ["3,000", "200,000", "1"]
    assert float(row[4]) > 0
    assert float(row[5]) > 0

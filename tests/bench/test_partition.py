"""The benchmark of parts: a row for every size, and one for every layer and graph."""

from __future__ import annotations

import sys

import pytest

from bench.partition import LAYERS, main


def test_both_tables_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--vertices", "2000", "--parts", "3", "--edges", "6000", "--runs", "1"]
    monkeypatch.setattr(sys, "argv", ["partition", *arguments])
    main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert rows[2][:2] == ["2,000", "3"]
    assert float(rows[2][3]) > 0
    assert [row[:3] for row in rows[5:]] == [
        [layer, graph, "11"] for graph in ("the same", "another") for layer in LAYERS
    ]
    assert all(cell.endswith("%") for row in rows[5:] for cell in row[3:])

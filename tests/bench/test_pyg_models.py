"""Epochs of PyG's models with PyG and with sagann, at a tiny scale."""

from __future__ import annotations

import pytest

from bench.pyg_models import COLUMNS, main


def test_a_row_for_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--graphs", "tiny", "--models", "GCN", "PNA", "--hidden", "8", "--rounds", "1", "--threads", "1"])
    lines = [text for text in capsys.readouterr().out.splitlines() if text.startswith("|")]
    header, _, *rows = [line.strip("| ").split(" | ") for line in lines]
    assert header == COLUMNS.split(" | ")
    assert [row[:2] for row in rows] == [["tiny", "GCN"], ["tiny", "PNA"]]
    assert all(float(number) > 0 for row in rows for number in row[2:])

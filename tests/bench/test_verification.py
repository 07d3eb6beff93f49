"""The benchmark of checksums: a row for each way, and checksums are compared in two of them."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import pytest

from bench.verification import main, seconds_of
from sagann.errors import DatasetError
from sagann.storage import save_graph
from tests.graphs import labelled_graph


def test_the_table_has_a_row_for_each_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["verification", "--vertices", "300", "--edges", "2e3", "--rounds", "1"])
    main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[-3:]]
    assert [row[0] for row in rows] == ["values alone", "checksums by zlib", "checksums by isal"]
    assert all(float(row[1]) > 0 for row in rows)
    assert float(rows[0][3]) == 0


def test_a_damaged_dataset_is_found_where_checksums_are_compared(tmp_path: Path) -> None:
    save_graph(labelled_graph(), tmp_path / "graph")
    (path,) = tmp_path.rglob("features.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"\x3f")
    seconds_of(tmp_path / "graph", None)
    with pytest.raises(DatasetError, match="array file is damaged"):
        seconds_of(tmp_path / "graph", zlib.crc32)

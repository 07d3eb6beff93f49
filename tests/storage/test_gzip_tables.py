"""Compressed tables."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sagann.errors import DatasetError
from sagann.storage import import_edge_list, open_graph
from sagann.storage.csv_table import CsvTable


def edges_of(path: Path, **options: int) -> int:
    table = CsvTable(path, **options)
    return sum(len(batch.columns[0]) for batch in table.batches(table.names[:2], ["int64", "int64"]))


def test_files_of_several_parts_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv.gz"
    path.write_bytes(gzip.compress(b"0,1\n") + gzip.compress(b"1,2\n"))
    import_edge_list(path, tmp_path / "g")
    assert open_graph(tmp_path / "g").num_edges == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"0,1\n", gzip.compress(b"0,1\n" * 1000, mtime=0)[:-9], b"\x1f\x8b\x08"],
    ids=["empty", "plain", "cut", "begin"],
)
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "edges.csv.gz").write_bytes(content)
    with pytest.raises(DatasetError, match=r"edges\.csv\.gz"):
        edges_of(tmp_path / "edges.csv.gz")

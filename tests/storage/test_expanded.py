"""Gzip files that expand to far more than their size."""

from __future__ import annotations

import gzip
import io
import os
import time
from pathlib import Path

import pytest

from sagann.errors import DatasetError, InputError
from sagann.storage import ImportOptions, import_edge_list, open_graph
from sagann.storage.csv_table import CsvTable
from sagann.storage.expanded import Expanded
from tests.threads import left_threads


def bomb(path: Path, begin: bytes = b"", piece: bytes = b"\n" * 2**20, count: int = 300) -> Path:
    """A small file that expands to hundreds of mebibytes."""
    with gzip.open(path, "wb") as file:
        file.write(begin)
        for _ in range(count):
            file.write(piece)
    return path


def edges_of(path: Path, **options: int) -> int:
    table = CsvTable(path, **options)
    return sum(len(batch.columns[0]) for batch in table.batches(table.names[:2], ["int64", "int64"]))


@pytest.mark.parametrize(
    ("begin", "piece"), [(b"", b"\n" * 2**20), (b"0,1\n", b"\n" * 2**20), (b"", b"0,1\n" * 2**18)]
)
def test_a_file_that_expands_without_end_is_refused_soon(tmp_path: Path, begin: bytes, piece: bytes) -> None:
    path = bomb(tmp_path / "edges.csv.gz", begin, piece)
    assert path.stat().st_size < 2**20
    start_s = time.process_time()
    with pytest.raises(DatasetError, match=r"gzip file expands to far more than its size|begins without a row"):
        edges_of(path, expansion=100)
    assert time.process_time() - start_s < 5


def test_the_limit_can_be_raised(tmp_path: Path) -> None:
    path = bomb(tmp_path / "edges.csv.gz", b"", b"0,1\n" * 2**16, 400)
    with pytest.raises(DatasetError, match="at most 1 times as much is read"):
        edges_of(path, expansion=1)
    assert edges_of(path, expansion=2000) == 400 * 2**16


def test_an_import_leaves_nothing_behind(tmp_path: Path) -> None:
    path = bomb(tmp_path / "edges.csv.gz", b"0,1\n")
    (tmp_path / "out").mkdir()
    with pytest.raises(DatasetError, match=r"expands to far more .*edges\.csv\.gz"):
        import_edge_list(path, tmp_path / "out" / "g")
    assert os.listdir(tmp_path / "out") == []
    assert not left_threads()


def test_files_of_several_parts_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv.gz"
    path.write_bytes(gzip.compress(b"0,1\n") + gzip.compress(b"1,2\n"))
    with io.BufferedReader(Expanded(path.open("rb"), 1)) as file:
        assert file.read() == b"0,1\n1,2\n"
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


def test_at_least_a_byte_for_a_byte() -> None:
    with pytest.raises(InputError, match="expansion is out of range: 0, expected an integer from 1"):
        ImportOptions(expansion=0)

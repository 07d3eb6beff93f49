"""CSV and Parquet files as spreadsheets, pandas and others write them, and the rows that are refused."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sagann.errors import DatasetError
from sagann.storage import read_npz, tables
from sagann.storage.edge_list import open_array
from sagann.storage.rows import open_rows
from sagann.storage.tables import CsvTable, ParquetTable, column_name, open_table


def written(folder: Path, text: str, *, packed: bool = False) -> Path:
    path = folder / ("t.csv.gz" if packed else "t.csv")
    data = text.encode()
    # In two parts, as tools that compress in parallel write them.
    path.write_bytes(gzip.compress(data[:5]) + gzip.compress(data[5:]) if packed else data)
    return path


def rows(table: CsvTable) -> list[tuple[int, int]]:
    columns = [columns for _, columns in table.batches(table.names, ["int64", "int64"])]
    return [pair for src, dst in columns for pair in zip(src.tolist(), dst.tolist(), strict=True)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("top", ["", "src,dst\n", "# made by hand\nsrc,dst\n"])
def test_a_byte_order_mark_is_no_part_of_the_first_field(tmp_path: Path, top: str, *, packed: bool) -> None:
    table = CsvTable(written(tmp_path, f"\ufeff{top}0,1\n1,2\n", packed=packed))
    assert table.names == (["src", "dst"] if top else ["column 0", "column 1"])
    assert rows(table) == [(0, 1), (1, 2)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("\n\n\nsrc,dst\n1,x\n0,1\n", 2),
        ("  \n# note\n\nsrc,dst\n1,x\n", 3),
        ("\ufeff\n1,0\n1,x\n", 2),
        ("src,dst\r\r1,2\r\r1,x\r", 3),
        ("src,dst\n" + "0,1\n" * 50_000 + "\n\n1,x\n", 50_002),
    ],
)
def test_empty_lines_are_not_counted_wherever_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, row: int, *, packed: bool
) -> None:
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 2**14)
    with pytest.raises(DatasetError, match=rf"column .*: .* int64: invalid value 'x' .*t\.csv.*, row {row}\)"):
        rows(CsvTable(written(tmp_path, text, packed=packed)))
    sound = CsvTable(written(tmp_path, text.replace("x", "7"), packed=packed))
    assert sound.first_row + rows(sound).index((1, 7)) == row


@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("label\n0\n\n1\n", 3),
        ("label\n\n0\n1\n", 2),
        ("# note\r\r0\r1\r\r\r2\r", 4),
    ],
)
def test_an_empty_line_in_a_single_column_is_refused(tmp_path: Path, text: str, row: int, dtype: str) -> None:
    table = CsvTable(written(tmp_path, text))
    with pytest.raises(DatasetError, match=rf"the line is empty, .* would move up.*t\.csv, row {row}\)"):
        list(table.batches(table.names, [dtype]))


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_empty_lines_around_a_single_column_are_none(tmp_path: Path, dtype: str) -> None:
    table = CsvTable(written(tmp_path, "\n\nlabel\n3\n 4\n\n\n"))
    ((_, columns),) = table.batches(table.names, [dtype])
    assert columns[0].tolist() == [3, 4]
    table = CsvTable(written(tmp_path, "# labels\n\n0\n1\n"))
    ((_, columns),) = table.batches(table.names, [dtype])
    assert columns[0].tolist() == [0, 1]
    # As pandas writes a missing value: it is a row of its own, also at the end.
    table = CsvTable(written(tmp_path, 'label\n3\n""\n'))
    with pytest.raises(DatasetError, match=r"column 'label' has no value .*row 3\)"):
        list(table.batches(table.names, [dtype]))


@pytest.mark.parametrize("field", ["1_000", "\u0661", ""])
def test_later_rows_are_read_as_strictly_as_the_first(tmp_path: Path, field: str) -> None:
    with pytest.raises(DatasetError, match=r"(invalid|has no) value.*t\.csv, row 3\)"):
        rows(CsvTable(written(tmp_path, f"src,dst\n0,1\n1,{field}\n")))
    with pytest.raises(DatasetError, match=r"neither names nor numbers|(invalid|has no) value"):
        rows(CsvTable(written(tmp_path, f"1,{field}\n0,1\n")))


def test_spaces_quotes_and_other_columns_do_no_harm(tmp_path: Path) -> None:
    table = CsvTable(written(tmp_path, 'src, dst,name\n0, 1,fox\n" 1" ,-2,"a, b"\n'))
    ((_, columns),) = table.batches(["src", "dst"], ["int64", "int64"])
    assert [column.tolist() for column in columns] == [[0, 1], [1, -2]]


def test_names_of_columns_are_in_utf_8(tmp_path: Path) -> None:
    text, path = "# gr\u00f6\u00dfe\nid,gr\u00f6\u00dfe\n0,1\n", tmp_path / "t.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DatasetError, match=r"file cannot be read: .*utf-8.*t\.csv\)\. .*save it as UTF-8"):
        CsvTable(path)
    path.write_bytes(text.encode())
    assert CsvTable(path).names == ["id", "gr\u00f6\u00dfe"]


def test_a_blank_label_is_unknown_and_a_blank_number_is_refused(tmp_path: Path) -> None:
    table = CsvTable(written(tmp_path, "id,label\n0, 1\n1, \n2,\n"))
    ((_, columns),) = table.batches(table.names, ["int64", tables.LABEL])
    assert str(columns[1].tolist()) == "[1.0, nan, nan]"
    with pytest.raises(DatasetError, match=r"column 'label' has no value .*row 3\)"):
        list(table.batches(table.names, ["int64", "float32"]))


@pytest.mark.parametrize("header", [None, True])
def test_a_column_without_a_name_is_chosen_by_nobody(tmp_path: Path, header: bool | None) -> None:
    """pandas writes its index so, which would be taken for the sources, or for a feature."""
    path = written(tmp_path, ",src,dst\n0,5,7\n1,6,8\n")
    table = CsvTable(path, header=header)
    assert [column_name(table, column) for column in (1, 2, "src", "dst")] == ["src", "dst", "src", "dst"]
    for choose in (lambda: column_name(table, 0), lambda: open_array(path, "features")):
        with pytest.raises(DatasetError, match=r"a column has no name: '', 'src', 'dst' .*index=False"):
            choose()


def test_features_whose_columns_are_numbered_are_refused(tmp_path: Path) -> None:
    """pandas numbers columns without names, and the numbers would be taken for a vertex's features."""
    with pytest.raises(DatasetError, match=r"first row may be data or names: 0, 1, ..., 2 .*header=False"):
        open_array(written(tmp_path, "0,1,2\n9,9,9\n8,8,8\n"), "features")
    (chunk,) = open_array(written(tmp_path, "0,1\n9,9\n"), "features").chunks()
    assert chunk.rows.tolist() == [[0, 1], [9, 9]]
    assert not CsvTable(written(tmp_path, "0,1,2\n9,9,9\n"), header=False).may_be_numbered


def test_labels_of_rows_in_pandas_are_no_column(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = {"a": pa.array([0.5, 0.25]), "__index_level_0__": pa.array([7, 9])}
    pq.write_table(pa.table(columns), path)
    assert ParquetTable(path).names == ["a"]
    (chunk,) = open_array(path, "features").chunks()
    assert chunk.rows.tolist() == [[0.5], [0.25]]
    pq.write_table(pa.table(columns).drop_columns("a"), path)
    with pytest.raises(DatasetError, match=r"table has no columns: 2 rows, and __index_level_0__ in them"):
        ParquetTable(path)


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 2**12)
    for text in ("1" * 2**14, "0,1\n" + "1" * 2**14):
        with pytest.raises(DatasetError, match=r"a line is too long|file cannot be read|row \d\)"):
            rows(CsvTable(written(tmp_path, text)))
    for text in ("src," + "d" * 2**12 + "0\n1\n", "#" * 2**12 + "0,1\n"):
        with pytest.raises(DatasetError, match=r"a line is too long: at least 4096 characters .*t\.csv"):
            CsvTable(written(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "read"),
    [("g.npz", read_npz), ("e.csv", open_table), ("e.parquet", open_table), ("f.npy", open_rows)],
)
def test_a_missing_file_a_folder_and_a_pipe_are_named(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    with pytest.raises(DatasetError, match=f"file not found: .*{name}"):
        read(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(DatasetError, match=f"not a file: a folder.*{name}"):
        read(tmp_path / name)
    (tmp_path / name).rmdir()
    # Whoever reads it twice, as tables are, would miss what was read before.
    os.mkfifo(tmp_path / name)
    with pytest.raises(DatasetError, match=f"not a file: a pipe.*{name}"):
        read(tmp_path / name)

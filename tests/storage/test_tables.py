"""CSV files as spreadsheets write them: byte order marks, empty lines."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sagann.errors import DatasetError
from sagann.storage import columns
from sagann.storage.columns import MOST_COLUMNS
from sagann.storage.csv_table import CsvTable
from sagann.storage.parquet_table import ParquetTable
from sagann.storage.tables import column_name
from sagann.storage.vertex_files import open_features


def written(folder: Path, text: str, *, packed: bool = False) -> Path:
    path = folder / ("t.csv.gz" if packed else "t.csv")
    data = text.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def rows(table: CsvTable) -> list[tuple[int, int]]:
    columns = [batch.columns for batch in table.batches(table.names, ["int64", "int64"])]
    return [pair for src, dst in columns for pair in zip(src.tolist(), dst.tolist(), strict=True)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("top", ["", "src,dst\n", "# made by hand\nsrc,dst\n"])
def test_a_byte_order_mark_is_no_part_of_the_first_field(tmp_path: Path, top: str, *, packed: bool) -> None:
    table = CsvTable(written(tmp_path, f"\ufeff{top}0,1\n1,2\n", packed=packed))
    assert table.names == (["src", "dst"] if top else ["column 0", "column 1"])
    assert rows(table) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("src,dst\n0,1\n1,x\n", 3),
        ("\nsrc,dst\n0,1\n1,x\n", 3),
        ("\n\n\nsrc,dst\n1,x\n0,1\n", 2),
        ("  \n# note\n\nsrc,dst\n1,x\n", 3),
        ("\r\nsrc,dst\r\n1,x\r\n", 2),
        ("\n0,1\n\n1,x\n", 2),
        ("\ufeff\n1,0\n1,x\n", 2),
    ],
)
def test_empty_lines_are_not_counted_wherever_they_stand(tmp_path: Path, text: str, row: int) -> None:
    with pytest.raises(DatasetError, match=rf"'x' in .* is not an integer .*t\.csv, row {row}\)"):
        rows(CsvTable(written(tmp_path, text)))
    sound = CsvTable(written(tmp_path, text.replace("x", "7")))
    assert (1, 7) in rows(sound)
    assert sound.first_row + rows(sound).index((1, 7)) == row


@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("label\n0\n\n1\n", 3),
        ("0\n\r\n1\n", 2),
        ("label\n\n0\n1\n", 2),
        ("0\n" * 30_000 + "\n\n" + "1\n" * 30_000, 30_001),
    ],
)
def test_an_empty_line_in_a_single_column_is_a_missing_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, row: int, dtype: str
) -> None:
    # The longest of the files takes several blocks.
    monkeypatch.setattr("sagann.storage.csv_table._BLOCK_BYTES", 2**14)
    table = CsvTable(written(tmp_path, text))
    with pytest.raises(DatasetError, match=rf"the line is empty, .* would move up \(in .*t\.csv, row {row}\)"):
        list(table.batches(table.names, [dtype]))


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_empty_lines_around_a_single_column_are_none(tmp_path: Path, dtype: str) -> None:
    table = CsvTable(written(tmp_path, "\n\nlabel\n3\n 4\n\n\n"))
    (batch,) = table.batches(table.names, [dtype])
    assert batch.columns[0].tolist() == [3, 4]
    # As pandas writes a missing value: it is a row of its own, also at the end.
    table = CsvTable(written(tmp_path, 'label\n3\n""\n'))
    with pytest.raises(DatasetError, match=r"'' in column 'label' is not .*row 3\)"):
        list(table.batches(table.names, [dtype]))


@pytest.mark.parametrize("field", ["0x10", "0X1f", "1_000", "+1", "1.0", "\u0661", " 0x1"])
def test_later_rows_are_read_as_strictly_as_the_first(tmp_path: Path, field: str) -> None:
    with pytest.raises(DatasetError, match=r"is not an integer .*t\.csv, row 3\)"):
        rows(CsvTable(written(tmp_path, f"src,dst\n0,1\n1,{field}\n")))
    with pytest.raises(DatasetError, match=r"neither names nor numbers|is not an integer"):
        rows(CsvTable(written(tmp_path, f"1,{field}\n0,1\n")))


def test_spaces_around_numbers_are_no_part_of_them(tmp_path: Path) -> None:
    assert rows(CsvTable(written(tmp_path, "src, dst\n0, 1\n 1 ,-2\n"))) == [(0, 1), (1, -2)]


def test_an_x_in_a_column_that_is_not_read_does_no_harm(tmp_path: Path) -> None:
    table = CsvTable(written(tmp_path, "src,dst,name\n0,1,fox\n"))
    (batch,) = table.batches(["src", "dst"], ["int64", "int64"])
    assert [column.tolist() for column in batch.columns] == [[0], [1]]


def test_a_column_may_be_ids_and_weights(tmp_path: Path) -> None:
    table = CsvTable(written(tmp_path, "src,dst\n16777217,1\n"))
    (batch,) = table.batches(["src", "dst", "src"], ["int64", "int64", "float32"])
    assert [column.tolist() for column in batch.columns] == [[16777217], [1], [16777216.0]]


@pytest.mark.parametrize("header", [None, True])
def test_a_column_without_a_name_is_chosen_by_nobody(tmp_path: Path, header: bool | None) -> None:
    """pandas writes its index so, which would be taken for the sources, or for a feature."""
    path = written(tmp_path, ",src,dst\n0,5,7\n1,6,8\n")
    table = CsvTable(path, header=header)
    assert [column_name(table, column) for column in (1, 2, "src", "dst")] == ["src", "dst", "src", "dst"]
    with pytest.raises(DatasetError, match=r"a column has no name: '', 'src', 'dst' .*index=False"):
        column_name(table, 0)
    with pytest.raises(DatasetError, match="a column has no name"):
        open_features(path)


def test_features_whose_columns_are_numbered_are_refused(tmp_path: Path) -> None:
    """pandas numbers columns without names, and the numbers would be taken for a vertex's features."""
    with pytest.raises(DatasetError, match=r"first row may be data or names: 0, 1, ..., 2 .*header=False"):
        open_features(written(tmp_path, "0,1,2\n9,9,9\n8,8,8\n"))
    (chunk,) = open_features(written(tmp_path, "0,1\n9,9\n")).chunks()
    assert chunk.rows.tolist() == [[0, 1], [9, 9]]
    assert not CsvTable(written(tmp_path, "0,1,2\n9,9,9\n"), header=False).may_be_numbered


def test_labels_of_rows_in_pandas_are_no_column(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = {"a": pa.array([0.5, 0.25]), "__index_level_0__": pa.array([7, 9])}
    pq.write_table(pa.table(columns), path)
    assert ParquetTable(path).names == ["a"]
    (chunk,) = open_features(path).chunks()
    assert chunk.rows.tolist() == [[0.5], [0.25]]


@pytest.mark.parametrize("names", [[], ["__index_level_0__"]])
def test_a_parquet_file_without_columns_is_refused(tmp_path: Path, names: list[str]) -> None:
    pq.write_table(pa.table({name: [1, 2] for name in names}), tmp_path / "x.parquet")
    with pytest.raises(
        DatasetError, match=r"table has no columns: \d rows, and (nothing|__index_level_0__) in them"
    ):
        ParquetTable(tmp_path / "x.parquet")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("line", ["\n", "\r\n", " \n", "#\n", "# note\n"])
def test_empty_lines_at_the_top_cost_nearly_nothing(tmp_path: Path, line: str, *, packed: bool) -> None:
    path = written(tmp_path, line * 2_000_000 + "0,1\n", packed=packed)
    start_s = time.process_time()
    with pytest.raises(DatasetError, match=r"file begins without a row: \d+ empty lines and comments"):
        CsvTable(path)
    assert time.process_time() - start_s < 2


@pytest.mark.parametrize("last", ["1,2\n", "1,x\n"])
def test_empty_lines_in_the_middle_cost_little(tmp_path: Path, last: str) -> None:
    table = CsvTable(written(tmp_path, "0,1\n" + "\n" * 50_000_000 + last))
    start_s = time.process_time()
    if "x" in last:
        with pytest.raises(DatasetError, match=r"row 2\)"):
            rows(table)
    else:
        assert rows(table) == [(0, 1), (1, 2)]
    assert time.process_time() - start_s < 3


def test_bad_rows_are_found_across_the_blocks_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.storage.csv_table._READ_BYTES", 7)
    for end in ("\n", "\r\n", "\r"):
        text = end.join(["src,dst", "", "100,200", "", "", "300,400", "500,x", ""])
        with pytest.raises(DatasetError, match=r"'x' in .* row 4\)"):
            rows(CsvTable(written(tmp_path, text)))


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.storage.csv_table._BLOCK_BYTES", 2**12)
    with pytest.raises(DatasetError, match="a line is too long: at least 4096 characters"):
        CsvTable(written(tmp_path, "1" * 2**14))
    with pytest.raises(DatasetError, match=r"file cannot be read|row 2\)"):
        rows(CsvTable(written(tmp_path, "0,1\n" + "1" * 2**14)))


def test_a_table_of_many_columns_is_refused_before_they_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DatasetError, match="too many columns: 1000000, at most 65536 are read"):
        CsvTable(written(tmp_path, ",".join(["0"] * 1_000_000) + "\n"))
    with pytest.raises(DatasetError, match="columns share a name: 'a'"):
        CsvTable(written(tmp_path, "a," * (MOST_COLUMNS - 1) + "b\n"))
    assert len(CsvTable(written(tmp_path, ",".join(["0"] * MOST_COLUMNS) + "\n")).names) == MOST_COLUMNS
    monkeypatch.setattr(columns, "MOST_COLUMNS", 2)
    pq.write_table(pa.table({"a": [1], "b": [1], "c": [1]}), tmp_path / "t.parquet")
    with pytest.raises(DatasetError, match="too many columns: 3, at most 2 are read"):
        ParquetTable(tmp_path / "t.parquet")

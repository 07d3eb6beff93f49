"""CSV files as spreadsheets write them: byte order marks, empty lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sagann.errors import DatasetError
from sagann.storage.tables import CsvTable


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

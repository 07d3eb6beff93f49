"""A CSV file as a table, streamed in batches with row numbers for messages.

pyarrow parses. If pyarrow refuses a row, Python's ``csv`` module reads the file again to find the number of the row.
Rows are counted from 1, as in editors, but empty lines do not count. In a file of one column an empty line is a missing value. A
missing value is refused, except at the end of the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from sagann.errors import DatasetError
from sagann.storage.columns import (
    FIX_INTEGERS,
    LABEL,
    UNREADABLE,
    Batch,
    bad_row,
    quoted,
    refuse_doubles,
    require_columns,
    stored_as,
)
from sagann.storage.regular_file import reading

_BLOCK_BYTES = 2**22
_READ_BYTES = 2**20
# pyarrow skips lines within its first block only. A character takes up to 4 bytes.
_MOST_SKIPPED = 2**20
_LINE_ENDS = re.compile(r"[\r\n]+")
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE | re.ASCII)


class CsvTable:
    """A CSV file, plain or compressed by gzip.

    Args:
        path: the file; a file whose name ends in '.gz' is decompressed. Lines at the top that begin with '#' are skipped.
        separator: one character.
        header: whether the first line holds names; None to decide by whether it holds numbers.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        separator: str = ",",
        header: bool | None = None,
    ) -> None:
        self.path = Path(path)
        self._separator = separator
        if len(separator) != 1:
            raise DatasetError(
                "separator is not one character", value=repr(separator), where=str(path), fix="Pass ',' or '\\t'."
            )
        first, num_lines, num_rows = self._first_line()
        require_columns(len(first), self.path)
        places = [str(place) for place in range(len(first))]
        self.may_be_numbered = header is None and len(first) > 2 and [field.strip() for field in first] == places
        """Whether the first row is read as numbers, but may be names: 0, 1, 2, ..."""
        if header is None:
            numbers = [bool(_NUMBER.fullmatch(field.strip())) for field in first]
            if any(numbers) and not all(numbers):
                raise DatasetError(
                    "the first row is neither names nor numbers",
                    value=separator.join(first)[:80],
                    where=f"{path}, row 1",
                    fix="Give every column a name, or none; of an edge list, header (--header, --no-header) says whether there are names.",
                )
            header = not all(numbers)
        self.has_names = header
        """Whether the file itself names its columns."""
        self.names = [name.strip() for name in first] if header else [f"column {i}" for i in range(len(first))]
        refuse_doubles(self.names, self.path)
        # Lines of the file; rows are the lines that are not empty.
        self._num_skipped = num_lines + header
        self.first_row = num_rows + 1 + header

    def estimate_rows(self) -> int | None:
        """Number of rows, estimated from the size of the file and its first lines; None for a compressed file."""
        if self.path.suffix == ".gz":
            return None
        size_bytes = self.path.stat().st_size
        with self.path.open("rb") as file:
            sample = file.read(2**16)
        return max(1, size_bytes * max(1, sample.count(b"\n")) // len(sample))

    def batches(self, columns: Sequence[str], dtypes: Sequence[str]) -> Iterator[Batch]:
        """Stream columns as "int64", "float32", "float64" or LABEL; an error names the first row with another value."""
        wanted = list(zip(columns, dtypes, strict=True))
        # A column may be requested twice, as ids and as weights.
        integers = {name for name, dtype in wanted if dtype == "int64"}
        needed = {name: "int64" if name in integers else dtype for name, dtype in wanted}
        single = len(self.names) == 1
        # Integers are read as text, because pyarrow takes 0x10 for 16, and labels, because some are missing. A single column
        # is read as text, because its empty lines must be told from its values.
        types = {
            name: pa.string() if single or dtype in ("int64", LABEL) else pa.type_for_alias(dtype)
            for name, dtype in needed.items()
        }
        first_row, gap = self.first_row, None
        with reading(self.path, UNREADABLE), self._open() as file:
            try:
                for batch in self._reader(file, types, single=single):
                    if single:
                        batch, gap = self._before_gap(batch, first_row, gap)
                    found = {
                        name: _as_numbers(batch.column(name), needed[name])
                        if kind == pa.string()
                        else batch.column(name)
                        for name, kind in types.items()
                    }
                    arrays = tuple(
                        found[name].to_numpy(zero_copy_only=False).astype(stored_as(dtype), copy=False)
                        for name, dtype in wanted
                    )
                    if any(array.dtype == np.float32 and np.isinf(array).any() for array in arrays):
                        raise ValueError("a number is not finite")
                    yield Batch(columns=arrays, first_row=first_row)
                    first_row += batch.num_rows
            except DatasetError:
                raise
            except UNREADABLE as error:
                # An empty table is no error: open_csv refuses a file that ends after its header.
                if "Empty CSV file" in str(error):
                    return
                self._refuse_bad_row(needed)
                raise

    def _reader(self, file: BinaryIO, types: Mapping[str, Any], *, single: bool) -> Any:
        return pyarrow.csv.open_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(
                column_names=self.names, skip_rows=self._num_skipped, block_size=_BLOCK_BYTES
            ),
            parse_options=pyarrow.csv.ParseOptions(delimiter=self._separator, ignore_empty_lines=not single),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=list(types),
                column_types=types,
                null_values=[""] if single else [],
                strings_can_be_null=single,
                quoted_strings_can_be_null=False,
            ),
        )

    def _open(self) -> Any:
        return gzip.open(self.path) if self.path.suffix == ".gz" else self.path.open("rb")

    def _text(self) -> IO[str]:
        return io.TextIOWrapper(self._open(), encoding="utf-8-sig", errors="replace", newline="")

    def _first_line(self) -> tuple[list[str], int, int]:
        """The first line with fields, and the number of lines and of rows before it."""
        num_rows = num_skipped = 0
        with reading(self.path, UNREADABLE), self._text() as file:
            for number, line in enumerate(iter(lambda: file.readline(_BLOCK_BYTES), "")):
                if len(line) == _BLOCK_BYTES:
                    raise DatasetError(
                        "a line is too long",
                        value=f"at least {_BLOCK_BYTES} characters",
                        where=str(self.path),
                        fix="Check how the file was made; write one row in a line.",
                    )
                if not line.startswith("#") and line.strip():
                    return next(csv.reader([line], delimiter=self._separator)), number, num_rows
                num_rows += bool(line.strip())
                num_skipped += len(line)
                if num_skipped > _MOST_SKIPPED:
                    raise DatasetError(
                        "file begins without a row",
                        value=f"{number + 1} empty lines and comments, at most {_MOST_SKIPPED} characters are skipped",
                        where=str(self.path),
                        fix="Check how it was made; remove these lines.",
                    )
        raise DatasetError(
            "file is empty", value="there is no row in it", where=str(self.path), fix="Check how it was made."
        )

    def _refuse_bad_row(self, needed: Mapping[str, str]) -> None:
        """Raise an error for the first row with a value that has not the dtype ``needed`` in its column, if any."""
        places = {name: place for place, name in enumerate(self.names)}
        with self._text() as file:
            for _ in range(self._num_skipped):
                file.readline()
            rows = (row for row in csv.reader(_filled_lines(file), delimiter=self._separator) if row)
            for number, row in enumerate(rows, start=self.first_row):
                if problem := self._problem(row, needed, places):
                    raise bad_row(self.path, number, *problem)

    def _problem(
        self, row: list[str], needed: Mapping[str, str], places: Mapping[str, int]
    ) -> tuple[str, str] | None:
        """What is wrong with a row, and the remedy; None for a good row. ``places`` are the positions of the columns by name."""
        if len(row) != len(self.names):
            problem = f"{len(row)} fields, expected {len(self.names)}"
            return problem, "Give every row the same number of fields; check the separator."
        for name, dtype in needed.items():
            text = row[places[name]]
            field = f"'{text:.40}' in {quoted(name)}"
            if dtype == "int64":
                if not (_INTEGER.fullmatch(text.strip()) and -(2**63) <= int(text) < 2**63):
                    return f"{field} is not an integer", FIX_INTEGERS
            elif dtype == LABEL and not text.strip():
                continue
            elif not _NUMBER.fullmatch(text.strip()):
                return f"{field} is not a number", FIX_INTEGERS if dtype == LABEL else "Correct the row."
            elif dtype == "float32" and abs(float(text)) > _LARGEST_FLOAT32:
                return f"{field} is not finite in float32, which ends at {_LARGEST_FLOAT32:.3g}", "Correct the row."
        return None

    def _before_gap(self, batch: Any, first_row: int, gap: int | None) -> tuple[Any, int | None]:
        """Cut a batch of one column after its last value; return it, and the row of the first empty line or None."""
        is_value = batch.column(0).is_valid().to_numpy(zero_copy_only=False)
        num_rows = int(np.flatnonzero(is_value)[-1]) + 1 if is_value.any() else 0
        if gap is None and not is_value.all():
            gap = first_row + int(is_value.argmin())
        if gap is not None and gap < first_row + num_rows:
            raise bad_row(
                self.path,
                gap,
                "the line is empty, and the rows after it would move up",
                "Write the missing value: -1 or nan for an unknown label, a number for a feature; or drop the line.",
            )
        return batch.slice(0, num_rows), gap


def _filled_lines(file: IO[str]) -> Iterator[str]:
    """The lines of a file; of empty lines that follow one another at most one in a block. Ends at a line beyond a block."""
    rest = ""
    while len(rest) <= _BLOCK_BYTES and (text := file.read(_READ_BYTES)):
        *lines, rest = _LINE_ENDS.split(rest + text)
        yield from lines
    yield rest


def _as_numbers(column: Any, dtype: str) -> Any:
    """Numbers of a column of text: decimal integers, or floats."""
    kind = pa.type_for_alias(stored_as(dtype))
    if dtype == LABEL:
        text = pyarrow.compute.utf8_trim_whitespace(column)
        return pyarrow.compute.if_else(pyarrow.compute.equal(text, ""), None, text).cast(kind)
    letters = column.buffers()[2]
    # Bit 32 turns X into x; NumPy compares all letters at memory speed.
    if dtype == "int64" and letters is not None and ((np.frombuffer(letters, np.uint8) | 32) == ord("x")).any():
        raise pa.ArrowInvalid("hexadecimal numbers are not taken")
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return pyarrow.compute.utf8_trim_whitespace(column).cast(kind)

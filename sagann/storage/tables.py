"""Tables: CSV and Parquet files, read by Arrow in batches of rows that know their row numbers; columns by name or position.

Rows of CSV files are counted from 1, as in editors, but empty lines do not count. Rows of Parquet files are counted from 0. A missing value
is refused, except in a column of labels.
"""

from __future__ import annotations

import csv
import io
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from sagann.errors import DatasetError, did_you_mean
from sagann.import_config import EDGE_LISTS
from sagann.storage.regular_file import reading
from sagann.storage.rows import Array

Column: TypeAlias = str | int

BATCH_ROWS = 2**19
"Most rows of a batch."
LABEL = "label"
"Dtype of a column of labels: integers, also as 1.0, and NaN where a value is missing; read as float64."
_TAB_SUFFIXES = (".tsv", ".tsv.gz")
_BLOCK_BYTES = 2**22
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_BAD_ROW = re.compile(r"(?:column #(\d+): )?Row #(\d+): (.*)")
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_HINT = (
    "Vertex ids, types and labels are integers from 0; replace names by numbers, with pandas.factorize for example. "
    "Of an edge list, src, dst, weight and edge_type (--src, ...) choose other columns."
)
_NAMES = {
    "src": ("src", "source", "from", "u", "head"),
    "dst": ("dst", "destination", "target", "to", "v", "tail"),
    "id": ("id", "vertex", "vertex_id", "node", "node_id"),
}
"Names of columns that say what a column holds, in any case."
_NO_ENDS = ("id", "index", "weight", "type", "time", "timestamp", "ts", "date")
"Names of columns that are not taken for ends of edges."


class Table(ABC):
    """A file of columns."""

    may_be_numbered = False
    "Whether the first row is read as numbers, but may be names: 0, 1, 2, ..."

    def __init__(self, path: Path, names: Sequence[str], *, has_names: bool, first_row: int) -> None:
        self.path, self.names, self.has_names, self.first_row = path, list(names), has_names, first_row
        """``has_names`` says whether the file itself names its columns."""
        if doubles := [repr(name) for name, count in Counter(names).items() if count > 1]:
            raise DatasetError(
                f"columns share a name: {', '.join(sorted(doubles)[:20])} (in {path})",
                hint="Rename one of them, or say that the file has no header.",
            )

    @abstractmethod
    def estimate_rows(self) -> int | None:
        """Number of rows, exact or estimated; None where it is unknown."""

    @abstractmethod
    def _record_batches(self, dtypes: Mapping[str, str]) -> Iterator[Any]:
        """Stream Arrow's record batches with the columns of ``dtypes``."""

    def batches(self, columns: Sequence[str], dtypes: Sequence[str]) -> Iterator[tuple[int, list[Array]]]:
        """Stream columns as "int64", "float32", "float64" or LABEL, after the number of their first row; an error names the first row with another value."""
        wanted = list(zip(columns, dtypes, strict=True))
        # A column may be requested twice, as ids and as weights.
        integers = {name for name, dtype in wanted if dtype == "int64"}
        first_row = self.first_row
        with reading(self.path):
            for batch in self._record_batches(
                {name: "int64" if name in integers else dtype for name, dtype in wanted}
            ):
                yield first_row, [self._array(batch.column(name), name, dtype, first_row) for name, dtype in wanted]
                first_row += batch.num_rows

    def _array(self, column: Any, name: str, dtype: str, first_row: int) -> Array:
        if column.null_count and dtype != LABEL:
            at = int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))
            raise self.bad_row(first_row + at, f"{quoted(name)} has no value")
        array: Array = column.to_numpy(zero_copy_only=False)
        if dtype == "int64" and array.dtype == np.int32:
            # Narrow integers stay narrow: there is less to copy. Unsigned ones beyond 63 bits turn negative, and are refused.
            return array
        return array.astype("float64" if dtype == LABEL else dtype, copy=False)

    def bad_row(self, row: int, problem: str) -> DatasetError:
        """The error of a row that cannot be used."""
        return DatasetError(f"row cannot be used: {problem} (in {self.path}, row {row})", hint=_HINT)


class CsvTable(Table):
    """A CSV file, plain or compressed by gzip.

    Args:
        path: the file; a file whose name ends in '.gz' is decompressed. Lines at the top that begin with '#' are skipped.
        separator: one character.
        header: whether the first line holds names; None to decide by whether it holds numbers.
    """

    def __init__(self, path: str | os.PathLike[str], *, separator: str = ",", header: bool | None = None) -> None:
        self.path, self._separator = Path(path), separator
        with reading(
            self.path, hint="Check that it is text in UTF-8 and not truncated; save it as UTF-8, or fetch it again."
        ):
            first, begin, end, row = self._first_row()
        places = [str(place) for place in range(len(first))]
        self.may_be_numbered = header is None and len(first) > 2 and [field.strip() for field in first] == places
        if header is None:
            numbers = [bool(_NUMBER.fullmatch(field.strip())) for field in first]
            if any(numbers) and not all(numbers):
                raise DatasetError(
                    f"the first row is neither names nor numbers: {separator.join(first)[:80]} (in {path}, row 1)",
                    hint="Give every column a name, or none; of an edge list, header (--header, --no-header) says whether there are names.",
                )
            header = not all(numbers)
        names = [name.strip() for name in first] if header else [f"column {i}" for i in range(len(first))]
        # Arrow gets the bytes from the first row of values on.
        self._begin = end if header else begin
        super().__init__(self.path, names, has_names=header, first_row=row + header)

    def estimate_rows(self) -> int | None:
        """Number of rows, estimated from the size of the file and its first lines; None for a compressed file."""
        if self.path.suffix == ".gz":
            return None
        with self.path.open("rb") as file:
            sample = file.read(2**16)
        return max(1, self.path.stat().st_size * max(1, sample.count(b"\n")) // len(sample))

    def _record_batches(self, dtypes: Mapping[str, str]) -> Iterator[Any]:
        if len(self.names) == 1:
            self._refuse_gaps()
        types = {name: pa.type_for_alias("float64" if dtype == LABEL else dtype) for name, dtype in dtypes.items()}
        try:
            yield from self._read(types, use_threads=True)
        except pa.ArrowInvalid as error:
            # A file may end after its header.
            if "Empty CSV file" not in str(error):
                self._refuse_bad_row(types)
                raise

    def _read(self, types: Mapping[str, Any], *, use_threads: bool) -> Iterator[Any]:
        with self._open(self._begin) as file:
            yield from pyarrow.csv.open_csv(
                file,
                read_options=pyarrow.csv.ReadOptions(
                    column_names=self.names, block_size=_BLOCK_BYTES, use_threads=use_threads
                ),
                parse_options=pyarrow.csv.ParseOptions(delimiter=self._separator),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=list(types), column_types=types, null_values=["", " "]
                ),
            )

    def _refuse_bad_row(self, types: Mapping[str, Any]) -> None:
        """Read the file again without threads: only so Arrow tells the number of a row."""
        try:
            for _ in self._read(types, use_threads=False):
                pass
        except pa.ArrowInvalid as error:
            if found := _BAD_ROW.search(str(error)):
                column = "" if found[1] is None else f"{quoted(self.names[int(found[1])])}: "
                raise self.bad_row(self.first_row + int(found[2]) - 1, f"{column}{found[3]:.200}") from error

    def _open(self, begin: int = 0) -> Any:
        """The bytes of the file from a position on, decompressed."""
        file = pa.input_stream(str(self.path), compression="gzip" if self.path.suffix == ".gz" else None)
        file.read(begin)
        return file

    def _first_row(self) -> tuple[list[str], int, int, int]:
        """Fields of the first row behind empty lines and comments; where it begins and ends in the file, and its number."""
        begin, row = 0, 1
        with io.TextIOWrapper(self._open(), encoding="utf-8", errors="surrogateescape", newline="") as file:
            while line := file.readline(_BLOCK_BYTES):
                if len(line) == _BLOCK_BYTES:
                    raise DatasetError(
                        f"a line is too long: at least {_BLOCK_BYTES} characters (in {self.path})",
                        hint="Check how the file was made; write one row in a line.",
                    )
                bare = line.removeprefix("\ufeff").strip()
                is_comment = bare.startswith("#")
                end = begin + len(line.encode(errors="surrogateescape" if is_comment else "strict"))
                if bare and not is_comment:
                    return (
                        next(csv.reader([line.removeprefix("\ufeff")], delimiter=self._separator)),
                        begin,
                        end,
                        row,
                    )
                begin, row = end, row + bool(bare)
        raise DatasetError(f"file is empty: there is no row in it (in {self.path})", hint="Check how it was made.")

    def _refuse_gaps(self) -> None:
        """Refuse an empty line of a single column: the rows after it would move up."""
        row, is_gap = self.first_row, False
        # As text, because a line may end with CR alone.
        with io.TextIOWrapper(self._open(self._begin), encoding="latin-1") as file:
            for line in file:
                if line.isspace():
                    is_gap = True
                elif is_gap:
                    raise self.bad_row(
                        row, 'the line is empty, and the rows after it would move up; write -1, nan or ""'
                    )
                else:
                    row += 1


class ParquetTable(Table):
    """A Parquet file, read row group by row group."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with reading(path), pq.ParquetFile(path) as file:
            self._schema = file.schema_arrow
            self._num_rows: int = file.metadata.num_rows
        # The index that pandas writes is no column of the table.
        names = [name for name in self._schema.names if not _PANDAS_INDEX.fullmatch(name)]
        super().__init__(Path(path), names, has_names=True, first_row=0)
        if not names:
            raise DatasetError(
                f"table has no columns: {self._num_rows} rows, and {', '.join(self._schema.names) or 'nothing'} in them (in {path})",
                hint="Write the values as columns with names.",
            )

    def estimate_rows(self) -> int:
        """Number of rows, from the file's footer."""
        return self._num_rows

    def _record_batches(self, dtypes: Mapping[str, str]) -> Iterator[Any]:
        for name, dtype in dtypes.items():
            kind = self._schema.field(name).type
            if not (pa.types.is_integer(kind) or (dtype != "int64" and pa.types.is_floating(kind))):
                raise DatasetError(
                    f"column has the wrong type: {quoted(name)} is {kind}, expected "
                    f"{'integers' if dtype == 'int64' else 'numbers'} (in {self.path})",
                    hint=_HINT,
                )
        # A buffered stream, so that a row group larger than memory is not read at once.
        with pq.ParquetFile(self.path, buffer_size=2**20, pre_buffer=False) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=list(dtypes))


def open_table(
    path: str | os.PathLike[str],
    *,
    separator: str | None = None,
    header: bool | None = None,
    kind: str | None = None,
) -> Table:
    """Open a table of the format ``kind``, 'csv' or 'parquet'; without ``kind``, the ending of the file's name decides.

    Without a ``separator``, fields are separated by tabs in a '.tsv' file, by commas in any other CSV file.
    """
    if kind == "parquet" or (kind is None and Path(path).suffix in EDGE_LISTS["parquet"]):
        return ParquetTable(path)
    if separator is None:
        separator = "\t" if Path(path).name.endswith(_TAB_SUFFIXES) else ","
    return CsvTable(path, separator=separator, header=header)


def quoted(name: str) -> str:
    """A column's name, for people."""
    return name if name.startswith("column ") else f"column '{name}'"


def named_column(table: Table, role: str) -> str | None:
    """The column beside others whose name says that it holds 'src', 'dst' or 'id'; None without one, an error for two."""
    has_names = table.has_names and len(table.names) > 1
    # As in source_id; the id of a vertex has names of its own.
    end = "" if role == "id" else "_id"
    found = [name for name in table.names if has_names and name.lower().removesuffix(end) in _NAMES[role]]
    if len(found) > 1:
        raise _unclear(table, f"{' and '.join(map(quoted, found))} both name the column of '{role}'")
    return found[0] if found else None


def end_columns(table: Table, given: Sequence[Column | None] = (None, None)) -> list[str]:
    """Columns of sources and destinations: as given, else by name, else the first and the second, unless names speak against it."""
    roles = ("src", "dst")
    named = [
        named_column(table, role) if column is None else column_name(table, column)
        for role, column in zip(roles, given, strict=True)
    ]
    ends = [column_name(table, at) if name is None else name for at, name in enumerate(named)]
    for role, name, known in zip(roles, ends, named, strict=True):
        if known is None and set(named) != {None} == set(given):
            raise _unclear(table, f"no column '{role}' ({', '.join(_NAMES[role])}) beside the other end")
        if known is None and table.has_names and name.lower() in _NO_ENDS:
            raise _unclear(table, f"{quoted(name)} is not taken for an end of edges")
    return ends


def _unclear(table: Table, problem: str) -> DatasetError:
    return DatasetError(
        f"it is not clear what the columns are: {problem}; there are {', '.join(map(quoted, table.names[:20]))} (in {table.path})",
        hint="Rename the columns; of an edge list, src and dst (--src and --dst) name them.",
    )


def column_name(table: Table, column: Column) -> str:
    """Find a column by name, or by position from 0."""
    if isinstance(column, str) and column in table.names:
        return column
    position = int(column) if isinstance(column, int) or column.isdecimal() else -1
    if 0 <= position < len(table.names):
        return require_named(table, table.names[position])
    raise DatasetError(
        f"column not found: no column {column!r}; there are {', '.join(map(quoted, table.names[:20]))} (in {table.path})",
        hint=f"{did_you_mean(column, table.names)}Choose a column by name or by position from 0; check the separator.",
    )


def require_named(table: Table, column: str) -> str:
    """The name of a column chosen by position; a column without a name is refused, because it may be an index."""
    if column:
        return column
    raise DatasetError(
        f"a column has no name: {', '.join(repr(name) for name in table.names[:20])} (in {table.path})",
        hint="If the column is an index, write the file without it (pandas: to_csv(..., index=False)), or choose columns by "
        "their names; else name the column.",
    )

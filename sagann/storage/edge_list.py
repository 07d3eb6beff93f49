"""Edge lists in CSV or Parquet files, with vertex features and labels in separate files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from sagann.errors import DatasetError, listed
from sagann.graph.checks import numbered
from sagann.import_config import EDGE_LISTS, EdgeListFormat, ImportOptions
from sagann.storage.import_source import EdgeChunk, Edges, ImportSource
from sagann.storage.importer import import_dataset
from sagann.storage.rows import RowChunk, Rows, checked_edge_data, chunk_rows, open_rows
from sagann.storage.tables import (
    LABEL,
    Table,
    column_name,
    end_columns,
    named_column,
    open_table,
    quoted,
    require_named,
)

PathLike: TypeAlias = str | os.PathLike[str]

_STORED = {"weight": "float32", "type": "int32"}
"How edge data of a table is stored."

_READ_AS = {"features": "float32", "labels": LABEL, "targets": "float64"}
"The dtype as which columns of a table are read, by the name of an array."


def import_edge_list(
    source: PathLike | Sequence[PathLike],
    out: PathLike,
    *,
    form: EdgeListFormat | None = None,
    features: PathLike | None = None,
    labels: PathLike | None = None,
    targets: PathLike | None = None,
    options: ImportOptions | None = None,
) -> None:
    """Import edges from CSV (plain or gzip) or Parquet files, streaming in bounded memory.

    Args:
        source: a file, several files, or a folder whose files are taken in the order of their names; all have the
            same columns. Vertex ids are integers from 0.
        out: dataset folder to make.
        form: columns and file format; by default names such as src and dst say which columns are source and destination, and
            without such names they are the first two.
        features: vertex features, one row per vertex: ``.npy`` [N, F], CSV or Parquet with F columns. A column ``id`` of
            this and the following tables has the vertex of each row; without one, rows are in the order of the vertices.
        labels: vertex labels: ``.npy`` [N] or [N, C], CSV or Parquet with one column, or C of 0/1.
        targets: values to predict in a regression: ``.npy`` [N] or [N, T], CSV or Parquet with a column for each.
        options: symmetrise, memory, and so on.
    Raises:
        DatasetError: a file is missing or damaged, or a row has a wrong value; the message names file and row.
    Example:
        >>> import tempfile, pathlib
        >>> from sagann.storage import open_graph
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     edges = pathlib.Path(folder, "edges.csv")
        ...     _ = edges.write_text("from,to,km\\n0,1,2.5\\n1,2,4\\n")
        ...     import_edge_list(edges, folder + "/roads", form=EdgeListFormat(weight="km"))
        ...     open_graph(folder + "/roads").topology.edge_data["weight"].tolist()
        [2.5, 4.0]
    """
    options, form = options or ImportOptions(), form or EdgeListFormat()
    files = _edge_files(source, kind=form.kind)
    given = {"features": features, "labels": labels, "targets": targets}
    of_edges = {os.path.realpath(file): file for file in files}
    for what, path in given.items():
        if path is not None and (file := of_edges.get(os.path.realpath(path))) is not None:
            raise DatasetError(
                f"a file of vertex {what} stands among those of edges: its rows would be read as edges (in {file})",
                hint="Move the file to another folder, or name each edge file.",
            )
    edges = _edges(_opened(files, form), form, may_be_empty=options.num_vertices is not None)
    arrays = {
        name: open_array(path, name, separator=form.separator) for name, path in given.items() if path is not None
    }
    import_dataset(
        ImportSource(
            # Edge files often have a general name such as 'edges'.
            name=Path(os.path.abspath(out)).name,
            description=f"edge list {files[0].name}" + (f" and {len(files) - 1} more" if len(files) > 1 else ""),
            edges=edges,
            arrays=arrays,
            stated={"feature_names": arrays["features"].names} if "features" in arrays else {},
        ),
        out,
        options,
    )


def _edge_files(source: PathLike | Sequence[PathLike], *, kind: str | None = None) -> list[Path]:
    """List the files of an edge list; of a folder, the files of ``kind``, or of every known kind."""
    endings = tuple(ending for each in EDGE_LISTS if kind in (None, each) for ending in EDGE_LISTS[each])
    if not isinstance(source, (str, os.PathLike)):
        paths = [Path(path) for path in source]
    elif Path(source).is_dir():
        paths = sorted(path for path in Path(source).iterdir() if path.name.endswith(endings))
    else:
        paths = [Path(source)]
    if not paths:
        raise DatasetError(
            f"no edge files found: no file that ends in {', '.join(endings)} (in {source})",
            hint="Name the edge files instead of the folder.",
        )
    return paths


def describe_columns(
    source: PathLike | Sequence[PathLike], form: EdgeListFormat, tables: Iterable[PathLike | None] = ()
) -> str:
    """A line that says which columns of an edge list are read, and which columns of tables of vertices have ids."""
    table, names = _opened(_edge_files(source, kind=form.kind), form)[0]
    src, dst, *_ = names
    said = f"Edges go from {quoted(src)} to {quoted(dst)}."
    for path in tables:
        if path is not None and Path(path).suffix != ".npy":
            ids = named_column(open_table(path, separator=form.separator), "id")
            said += "" if ids is None else f" Rows of {Path(path).name} are those of the vertices in {quoted(ids)}."
    if left_out := [name for name in table.names if name not in names]:
        said += (
            f" Columns left out: {listed(left_out)}. --weight takes one as edge weights, --edge-type as edge types."
        )
    return said


def _opened(files: Sequence[Path], form: EdgeListFormat) -> list[tuple[Table, list[str]]]:
    """Files of edges with the same columns, and those of each that are read: sources, destinations, weights, types."""
    tables = [open_table(file, separator=form.separator, header=form.header, kind=form.kind) for file in files]
    ends = [form.src, form.dst]
    for named in [table for table in tables if table.has_names][:1]:
        # Files that were cut from a larger one have no names, but the same columns.
        found = zip(end_columns(named, ends), ends, strict=True)
        ends = [named.names.index(name) if given is None else given for name, given in found]
    opened: list[tuple[Table, list[str]]] = []
    first_of: dict[bool, tuple[str, Path]] = {}
    for table in tables:
        names = end_columns(table, [form.src, form.dst] if table.has_names else ends)
        names += [column_name(table, column) for column in (form.weight, form.edge_type) if column is not None]
        if names[0] == names[1]:
            raise DatasetError(
                f"source and destination are the same column: {names[0]!r}; there are "
                f"{', '.join(repr(name) for name in table.names[:20])} (in {table.path})",
                hint="Name both columns: src and dst of EdgeListFormat (--src and --dst).",
            )
        # Of files without names the numbers of columns are compared.
        columns = ", ".join(names) if table.has_names else f"{len(table.names)} columns"
        expected, path = first_of.setdefault(table.has_names, (columns, table.path))
        if columns != expected:
            raise DatasetError(
                f"edge files differ in their columns: {columns}, in {path.name} {expected} (in {table.path})",
                hint="Remove files without edges from the folder; give all edge files the same columns, or name the columns "
                "by src and dst (--src and --dst).",
            )
        opened.append((table, names))
    return opened


def _edges(opened: Sequence[tuple[Table, list[str]]], form: EdgeListFormat, *, may_be_empty: bool) -> Edges:
    """The edges in the order of the files. Their number is exact for Parquet, estimated for plain CSV, unknown for compressed CSV."""
    counts = [table.estimate_rows() for table, _ in opened]
    wanted = {"weight": form.weight, "type": form.edge_type}
    columns = {name: np.dtype(_STORED[name]) for name, column in wanted.items() if column is not None}

    def chunks() -> Iterator[EdgeChunk]:
        num_edges = 0
        for table, names in opened:
            for chunk in table_edges(table, names, [*columns]):
                yield chunk
                num_edges += len(chunk.src)
        if num_edges == 0 and not may_be_empty:
            table, _ = opened[0]
            raise DatasetError(
                f"edge list has no edges: no row after the names {', '.join(table.names[:5])!r:.80} (in {table.path})",
                hint="Check how the file was made, and that it is plain text in UTF-8; for a graph without edges state "
                "num_vertices (--num-vertices).",
            )

    num_edges = None if None in counts else sum(count or 0 for count in counts)
    return Edges(chunks=chunks(), num_edges=num_edges, columns=columns)


def table_edges(table: Table, columns: Sequence[str], data: Sequence[str] = ()) -> Iterator[EdgeChunk]:
    """The edges of a table: columns of sources, destinations, and edge data of the names ``data``, some of 'weight' and 'type'."""
    dtypes = ["int64", "int64", *("float32" if name == "weight" else "int64" for name in data)]
    for first_row, (src, dst, *rows) in table.batches(columns, dtypes):
        where = numbered(str(table.path), "row", first_row)
        found = {
            name: checked_edge_data(values, name, _STORED[name], where=where)
            for name, values in zip(data, rows, strict=True)
        }
        yield EdgeChunk(src=src, dst=dst, data=found, file=str(table.path), first_row=first_row)


def table_rows(table: Table, dtype: str, *, is_matrix: bool = False) -> Rows:
    """The columns of a table without that of ids, read as ``dtype``; of a single column, a vector unless ``is_matrix``."""
    ids = named_column(table, "id")
    names = [name for name in table.names if name != ids]
    is_matrix = is_matrix or len(names) > 1

    def chunks() -> Iterator[RowChunk]:
        columns, dtypes = list(names), [dtype] * len(names)
        if ids is not None:
            columns, dtypes = [*columns, ids], [*dtypes, "int64"]
        # A batch of many columns is cut into chunks of bounded size.
        step = chunk_rows((len(names),))
        for first_row, batch in table.batches(columns, dtypes):
            for begin in range(0, len(batch[0]), step):
                parts = [column[begin : begin + step] for column in batch]
                known = None if ids is None else parts.pop()
                rows = np.stack(parts, axis=1) if is_matrix else parts[0]
                yield RowChunk(rows=rows, first_row=first_row + begin, ids=known)

    return Rows(
        file=str(table.path),
        dtype=np.dtype("float64" if dtype == LABEL else dtype),
        shape=(-1, len(names)) if is_matrix else (-1,),
        chunks=chunks,
        names=tuple(names) if table.has_names else (),
    )


def table_array(table: Table, name: str) -> Rows:
    """The columns of a table but its ids, as the array ``name``: features, labels (one column, or C of 0 and 1), or targets."""
    return table_rows(table, _READ_AS[name], is_matrix=name == "features")


def open_array(path: PathLike, name: str, *, separator: str | None = None) -> Rows:
    """Open an ``.npy`` file or a table as the array ``name``: features [N, F], labels [N] or [N, C], or targets [N] or [N, T]."""
    if Path(path).suffix == ".npy":
        return open_rows(path)
    table = open_table(path, separator=separator)
    if name != "labels":
        for column in table.names:
            require_named(table, column)
        if table.may_be_numbered:
            raise DatasetError(
                f"the first row may be data or names: 0, 1, ..., {len(table.names) - 1} (in {path}, row 1)",
                hint="If the row numbers the columns, take it out of the file (pandas: to_csv(..., header=False)); if it has "
                "the numbers of the first vertex, give the columns names.",
            )
    return table_array(table, name)

"""Arrays with one row per vertex, graph or edge on their way into a dataset: read and checked in chunks of rows.

:class:`Rows` is what an importer makes of an array in memory, in a file or in an archive, and of columns of a table. :func:`stored` and
:func:`stored_edge_data` tell from an array's name what its rows are: they check the form at once, choose how the rows are stored, and check
the values as they are read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from sagann.errors import DatasetError
from sagann.free_space import require_memory
from sagann.graph.checks import (
    NOT_A_NUMBER,
    Where,
    check_columns,
    check_ids,
    check_labels,
    check_types,
    first_true,
    not_finite,
    numbered,
    unknown_target,
    wrong_form,
)
from sagann.graph.rows import id_dtype
from sagann.storage.npy import dtype_name
from sagann.storage.regular_file import reading

Array = np.ndarray[Any, Any]

CHUNK_BYTES = 2**24
"Bytes of the rows of a chunk, unless a single row is larger."
FLOATS = ("float16", "float32", "float64")
"Names of the dtypes in which features are stored as they are; others become float32."


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChunk:
    """Some consecutive rows of an array."""

    rows: Array
    "Values [n, ...]."
    first_row: int = 0
    "Row number of the first row in the file; rows are counted from 1 in CSV files, from 0 in all others."
    ids: Array | None = None
    "Ids of the vertices that the rows belong to, int64 [n]; None where rows are in the order of the vertices."


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows to import. They are read once, from start to end."""

    file: str
    "Name of the file of the rows, for errors."
    dtype: np.dtype[Any]
    "Type of the values as they are read."
    shape: tuple[int, ...]
    "Shape of all rows as they are read; -1 where their number is unknown."
    chunks: Callable[[], Iterator[RowChunk]]
    "Function that reads the rows, in order."
    store_as: str = ""
    "Name of the torch dtype to store; empty where it is not chosen yet."
    names: tuple[str, ...] = ()
    "Names that the file gives the columns, or empty."

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row: () for labels, (F,) for features."""
        return self.shape[1:]

    def mapped(self, change: Callable[[Array, Where], Array], *, unit: str = "row") -> Rows:
        """Rows that are the result of ``change``, which gets the rows of a chunk, and their names for errors, with the word ``unit``."""

        def chunks() -> Iterator[RowChunk]:
            for chunk in self.chunks():
                yield replace(chunk, rows=change(chunk.rows, numbered(self.file, unit, chunk.first_row)))

        return replace(self, chunks=chunks)


def array_rows(array: Array, file: str, store_as: str = "") -> Rows:
    """The rows of an array that is in memory or mapped from a file."""

    def chunks() -> Iterator[RowChunk]:
        # Rows without values are one chunk, however many there are.
        step = max(1, chunk_rows(array.shape[1:]) if array.size else len(array))
        for begin in range(0, len(array), step):
            yield RowChunk(rows=array[begin : begin + step], first_row=begin)

    return Rows(file=file, dtype=array.dtype, shape=array.shape, chunks=chunks, store_as=store_as)


def chunk_rows(row_shape: tuple[int, ...]) -> int:
    """Number of rows in a chunk."""
    return max(1, CHUNK_BYTES // (8 * max(1, math.prod(row_shape))))


def open_rows(path: str | os.PathLike[str]) -> Rows:
    """The rows of an ``.npy`` file, mapped."""
    return array_rows(map_array(path), str(path))


def map_array(path: str | os.PathLike[str]) -> Array:
    """Map an ``.npy`` file into memory; never unpickles."""
    hint = "Save a plain numeric array with numpy.save; pickled objects are never loaded."
    with reading(path, hint=hint):
        array: Array = np.lib.format.open_memmap(path, mode="r")
        return array


_IDS = ((1,), "iu", "a vector of integers")
_FORMS = {
    "features": ((2,), "fiub", "numbers [num_vertices, num_features]"),
    "labels": ((1, 2), "iufb", "integers [num_vertices], or 0 and 1 [num_vertices, num_classes]"),
    "targets": ((1, 2), "iuf", "numbers [num_vertices], or [num_vertices, num_targets]"),
    "features_values": ((1,), "fiub", "a vector of numbers"),
    "split": ((1,), "b", "a vector of booleans"),
}
"Forms of arrays other than ids: numbers of dimensions, kinds of NumPy's dtypes, and both in words."


def stored(name: str, rows: Rows, counts: Mapping[str, Any] = MappingProxyType({})) -> Rows:
    """Rows as a dataset stores its array ``name`` of vertices or graphs: the form is checked at once, values as they are read.

    Features keep a floating-point dtype, or become float32. Labels are a class for each row, [N] or [N, 1] (NaN and -1 for unknown), stored
    as int64; or 0 and 1, [N, C], stored as uint8. Targets, [N], [N, 1] or [N, T], become float32.

    Args:
        name: name of the array's file in a dataset.
        rows: the rows as they are read; ``store_as`` goes before these dtypes.
        counts: numbers of features and classes, by their names in a manifest, where they are known.
    """
    of, array = "graph_" * name.startswith("graph_"), name.removeprefix("graph_")
    array = "split" if array.startswith("split_") else array
    is_single, dtype = rows.row_shape in ((), (1,)), rows.dtype.name
    _require_form(rows, *_FORMS.get(array, _IDS))
    match array:
        case "features":
            return _finite(rows, rows.store_as or (dtype if dtype in FLOATS else "float32"), "feature")
        case "features_values":
            return _finite(rows, "float32", "feature", unit="entry")
        case "labels":

            def classes(labels: Array, where: Where) -> Array:
                labels = _classes(labels, where) if is_single else labels
                check_labels(labels, counts.get(f"num_{of}classes"), where=where, error=DatasetError)
                return labels if is_single else labels.astype(np.uint8)

            shape = rows.shape[:1] if is_single else rows.shape
            return replace(rows.mapped(classes), shape=shape, store_as="int64" if is_single else "uint8")
        case "targets":
            rows = _finite(rows, "float32", "target", hint=unknown_target("graph" if of else "vertex"))
            flat = replace(rows.mapped(lambda values, _: values.reshape(len(values))), shape=rows.shape[:1])
            return flat if is_single else rows
        case "features_indices":

            def columns(ids: Array, where: Where) -> Array:
                check_columns(ids, counts["num_features"], where=where, error=DatasetError)
                return ids

            return replace(rows.mapped(columns, unit="entry"), store_as=rows.store_as or "int64")
    return replace(rows, store_as="bool" if array == "split" else rows.store_as or "int64")


def stored_edge_data(name: str, rows: Rows, num_types: int | None = None) -> Rows:
    """Edge data [E, ...], stored as integers of 32 or 64 bits or floating point; 'type' is integers [E] below ``num_types``."""
    is_type = name == "type"
    if is_type:
        _require_form(rows, (1,), "iu", "integers [E]")
    _require_form(rows, range(1, 65), "fiub", "numbers [E, ...]")
    kept = rows.dtype.name if rows.dtype.name in ("int32", "int64", *FLOATS) else "float32"
    store_as = rows.store_as or ("int64" if is_type or rows.dtype.name in ("uint32", "uint64") else kept)

    def checked(values: Array, where: Where) -> Array:
        return checked_edge_data(values, name, store_as, num_types, where=where)

    return replace(rows.mapped(checked), store_as=store_as)


def checked_edge_data(
    values: Array, name: str, store_as: str, num_types: int | None = None, *, where: Where
) -> Array:
    """Values of edge data, cast to the dtype to store; 'type' has an upper limit, and floating point is finite."""
    if name == "type":
        check_types(values, num_types, where=where, error=DatasetError)
    return _as_stored(values, store_as, f"edge data '{name}'", where=where)


def sparse_arrays(offsets: Rows, columns: Rows, values: Rows, *, num_columns: int) -> dict[str, Rows]:
    """Sparse features in CSR order, as arrays of a dataset: the narrowest integers that hold offsets and columns."""
    ids = dtype_name(id_dtype(max(math.prod(columns.shape), num_columns)))
    return {
        "features_indptr": replace(offsets, store_as=ids),
        "features_indices": replace(columns, store_as=ids),
        "features_values": values,
    }


def _require_form(rows: Rows, num_dims: Container[int], kinds: str, expected: str) -> None:
    if len(rows.shape) not in num_dims or rows.dtype.kind not in kinds:
        hint = "Save the array in the form that docs/data.md describes."
        raise wrong_form(rows, expected, where=rows.file, hint=hint, error=DatasetError)


def _finite(rows: Rows, store_as: str, what: str, *, unit: str = "row", hint: str = NOT_A_NUMBER) -> Rows:
    """Numbers that are cast to the dtype to store, and are finite there; ``what`` is the subject of the error."""

    def checked(values: Array, where: Where) -> Array:
        return _as_stored(values, store_as, what, where=where, hint=hint)

    return replace(rows.mapped(checked, unit=unit), store_as=store_as)


def _classes(values: Array, where: Where) -> Array:
    """Labels as int64, -1 for NaN."""
    values = values.reshape(len(values))
    if values.dtype.kind == "f":
        # In double precision, because 2**31 is beyond half precision.
        known = np.where(np.isnan(values), -1, values.astype(np.float64))
        wrong, problem = (known != np.floor(known)) | (np.abs(known) > 2**31), "is not an integer of 32 bits"
        found = np.where(wrong, 0, known).astype(np.int64)
    else:
        # As int64 a larger value would turn negative, and -1 stands for unknown.
        found, problem = values.astype(np.int64), "does not fit 63 bits"
        wrong = (found < 0) & (values > 0)
    if (at := first_true(wrong)) is not None:
        raise DatasetError(
            f"label is not an integer: {values[at]} {problem} (in {where(at)})",
            hint="Number the classes from 0; NaN and -1 stand for unknown. Values to predict in a regression are 'targets'.",
        )
    return found


def masks_of(split_ids: Mapping[str, Sequence[Rows]], num_vertices: int) -> dict[str, Rows]:
    """Masks, bool [num_vertices], from the integer ids [n] of each split, by the names of their arrays."""
    require_memory(
        num_vertices * len(split_ids),
        where=f"{len(split_ids)} splits of {num_vertices} vertices",
        hint="Check the number of vertices that the source states.",
    )
    masks: dict[str, Rows] = {}
    for name, sources in split_ids.items():
        mask = np.zeros(num_vertices, dtype=np.bool_)
        for source in sources:
            _require_form(source, *_IDS)
            for chunk in source.chunks():
                where = numbered(source.file, "row", chunk.first_row)
                check_ids(chunk.rows, num_vertices, f"split '{name}': vertex", where=where, error=DatasetError)
                mask[chunk.rows] = True
        masks[f"split_{name}"] = array_rows(mask, ", ".join(source.file for source in sources))
    return masks


def in_order_of_ids(chunks: Iterable[RowChunk], file: str) -> Iterator[Array]:
    """Rows of chunks in the order of their ids, which are 0 to n - 1; without ids, in the order of the chunks.

    Memory holds the rows from the first one on that is out of order.
    """
    num_rows, held = 0, list[RowChunk]()
    for chunk in chunks:
        if held or (chunk.ids is not None and (chunk.ids != np.arange(num_rows, num_rows + len(chunk.ids))).any()):
            held.append(chunk)
            # They are joined before they are taken in order.
            require_memory(sum(each.rows.nbytes for each in held), where=file, hint="Sort the rows by id.")
        else:
            num_rows += len(chunk.rows)
            yield chunk.rows
    if held:
        ids = np.concatenate([chunk.ids for chunk in held if chunk.ids is not None])
        order = np.argsort(ids, kind="stable")
        at = first_true(ids[order] != np.arange(num_rows, num_rows + len(ids)))
        if at is not None:
            found, expected = ids[order[at]], num_rows + at
            problem = f"stands where {expected} is missing" if found > expected else "stands twice"
            raise DatasetError(
                f"ids of rows are not those of the vertices: {found} "
                f"{'is negative' if found < 0 else problem}; there are {num_rows + len(ids)} rows (in {file}, "
                f"row {held[0].first_row + order[at]})",
                hint="Give each vertex one row, with its id from 0 as in the edges; an unknown label is -1.",
            )
        rows = np.concatenate([chunk.rows for chunk in held])
        for part in np.array_split(order, len(held)):
            yield rows[part]


def _as_stored(rows: Array, dtype: str, what: str, *, where: Where, hint: str = NOT_A_NUMBER) -> Array:
    """Cast rows to the dtype in which they are stored; refuse values that are not finite, or too large for it.

    ``what`` is the subject of the error's text, ``hint`` its advice about values that are not finite.
    """
    with np.errstate(over="ignore"):
        stored = rows.astype(dtype, copy=False)
    if stored is not rows and stored.dtype.kind != "f" and (at := first_true(stored != rows)) is not None:
        raise DatasetError(
            f"{what} is out of range: {rows[at].tolist()}, beyond {dtype}, which ends at {np.iinfo(dtype).max} (in {where(at)})",
            hint="Number the values from 0.",
        )
    if rows.dtype.kind == "f" and stored.dtype.kind == "f":
        wrong = ~np.isfinite(stored)
        at = first_true(wrong)
        if at is not None:
            column = first_true(wrong[at].reshape(-1)) or 0
            is_finite = np.isfinite(rows[at].reshape(-1)[column])
            limit = f", beyond {dtype}, which ends at {np.finfo(stored.dtype).max:.3g}" if is_finite else ""
            raise not_finite(rows[at], column, what, where=where(at), limit=limit, hint=hint, error=DatasetError)
    return stored

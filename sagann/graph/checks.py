"""Checks of arrays, of their forms and values: those of a graph in memory, of a topology, and of rows on their way into a dataset.

Most checks take rows as a tensor or as a NumPy array. They name the first offending row by the text that ``where`` gives for
the row's index, and raise an error of class ``error``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.ranges import RANGES

Rows: TypeAlias = Any
"A tensor or a NumPy array."
Where: TypeAlias = Callable[[int], str]
"Function from the index of a row to a text that names the row."

Unit = Literal["vertex", "graph", "link"]
"What has an id, and an answer."
UNITS: Mapping[Unit, str] = MappingProxyType({"vertex": "vertices", "graph": "graphs", "link": "links"})
"The plural of each unit."

CHECKED_AT_ONCE = 1 << 22
"Number of values in one slice: a slice is checked at memory speed and takes little memory."
LARGEST_TYPE = RANGES["num_edge_types"].high - 1
"Largest edge type."


def numbered(name: str, unit: str, first: int = 0) -> Where:
    """Name rows by number, from ``first`` on: "NAME, UNIT 17"."""
    return lambda at: f"{name}, {unit} {first + at}"


def form_of(value: object) -> str:
    """Type and shape of a tensor, and its layout where it is not dense, or the type of something else, for errors."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    layout = "" if value.layout == torch.strided else f" of layout {value.layout}"
    return f"{value.dtype} {list(value.shape)}{layout}"


def slices(length: int, row_size: int = 1) -> Iterator[slice]:
    """Cut rows of ``row_size`` values each into slices of about CHECKED_AT_ONCE values.

    A memory-mapped array that is checked slice by slice is read once and never copied whole.
    """
    step = max(1, CHECKED_AT_ONCE // max(1, row_size))
    for first in range(0, length, step):
        yield slice(first, min(first + step, length))


def first_true(wrong: Rows) -> int | None:
    """Index of the first row that holds a true value; None without one."""
    # NumPy's nonzero() gives an array of rows first, torch's the position of the first value: [0][0] is its row in both.
    return int(wrong.nonzero()[0][0]) if wrong.any() else None


def first_of_equals(keys: Sequence[Rows]) -> Rows:
    """bool [n]: the first of each run of rows that are equal in all keys [n]."""
    first = keys[0] == keys[0]
    first[1:] = False
    for key in keys:
        first[1:] |= key[1:] != key[:-1]
    return first


def wrong_form(
    array: Rows, expected: str, *, where: str, hint: str, error: type[InputError] = InputError
) -> InputError:
    """The error for an array of another dtype or shape than ``expected`` says."""
    found = form_of(array) if isinstance(array, Tensor) else f"{array.dtype} {list(array.shape)}"
    return error(f"array has the wrong form: {found}, expected {expected} (in {where})", hint=hint)


def require_array(
    array: object, dtypes: Collection[torch.dtype], form: str, *, where: str, hint: str, kind: str = ""
) -> None:
    """Refuse what is not a dense tensor of one of the types, with as many dimensions as ``form`` names, such as "[num_edges]".

    Offsets, whose form ends with "+ 1]", have one entry at least. ``kind`` names the types, for the error.
    """
    require_type(array, Tensor, where=where, hint=hint)
    assert isinstance(array, Tensor)
    has_form = array.ndim == 1 + form.count(",") and array.layout == torch.strided
    if array.dtype not in dtypes or not has_form or (form.endswith("+ 1]") and not len(array)):
        raise wrong_form(array, f"{kind or ' or '.join(map(str, dtypes))} {form}", where=where, hint=hint)


def mask_of_ids(num_rows: int) -> str:
    """How to make a mask of ids, for errors where ids are given in the place of a mask."""
    return f"Pass a mask of all vertices, not vertex ids: mask = torch.zeros({num_rows}, dtype=torch.bool); mask[ids] = True."


def _check_range(
    values: Rows,
    low: int,
    stop: int | None,
    what: str,
    limit: str,
    hint: str,
    where: Where,
    error: type[InputError],
) -> None:
    """Refuse integers [n] below ``low``, or from ``stop`` on (None: no limit)."""
    for part in slices(len(values)):
        some = values[part]
        least, most = (some.min(), some.max()) if isinstance(some, np.ndarray) else some.aminmax()
        # As numbers of Python: a limit that a narrow type of integers does not hold would wrap around.
        wrong = [some < low] if int(least) < low else []
        wrong += [some >= stop] if stop is not None and int(most) >= stop else []
        if wrong:
            at = min(int(mask.nonzero()[0][0]) for mask in wrong)
            raise error(
                f"{what} out of range: {int(some[at])}, but {limit} (in {where(part.start + at)})", hint=hint
            )


def check_ids(
    ids: Rows,
    num_vertices: int | None,
    side: str,
    *,
    where: Where,
    rows_of: str = "",
    units: str = "vertices",
    error: type[InputError] = InputError,
) -> None:
    """Check that ids are at least 0 and below ``num_vertices`` (None: no limit), which may be the number of ``rows_of`` a file."""
    limit = "ids start at 0" if num_vertices is None else f"there are {num_vertices} {units}, numbered from 0"
    hint = f"Number the {units} from 0 without gaps, or state the right number of {units}."
    if rows_of:
        limit, hint = f"{limit}: the rows of {rows_of}", f"Give each vertex a row in {rows_of}, or correct the id."
    _check_range(ids, 0, num_vertices, f"{side} id", limit, hint, where, error)


def require_ids(ids: Tensor, count: int | None = None, *, where: str, unit: Unit = "vertex") -> None:
    """Refuse what is not a tensor of ids, int64 [n], at least 0 and below ``count`` (None: no limit)."""
    hint = "Pass ids with .to(torch.int64), or mask.nonzero().squeeze(1) for a mask."
    require_array(ids, (torch.int64,), "[n]", where=where, hint=hint)
    check_ids(ids, count, unit, where=numbered(where, "position"), units=UNITS[unit])


def require_distinct(ids: Tensor, count: int | None = None, *, where: str, unit: Unit = "vertex") -> None:
    """:func:`require_ids`, each of them once."""
    require_ids(ids, count, where=where, unit=unit)
    if count is not None and count < 8 * len(ids):
        # Marks take less time and memory than a sorted copy.
        is_known = torch.zeros(count, dtype=torch.bool, device=ids.device).index_fill_(0, ids, True)
        if int(is_known.sum()) == len(ids):
            return
    in_order = ids.sort().values
    repeated = in_order[1:][in_order[1:] == in_order[:-1]]
    if len(repeated):
        raise InputError(
            f"{unit} repeated: {int(repeated[0])} stands more than once (in {where})",
            hint="Pass every id once, with ids.unique() for example.",
        )


def check_offsets(offsets: Tensor, end: int, what: str, *, where: str) -> None:
    """Check that offsets start at 0, never decrease, and end at ``end``; ``what`` names them in the plural."""
    hint = "Pass offsets that start at 0, never decrease, and end at the number of entries."
    if offsets[0] != 0 or offsets[-1] != end:
        value = f"from {int(offsets[0])} to {int(offsets[-1])}, expected 0 to {end}"
        raise InputError(f"{what} have the wrong ends: {value} (in {where})", hint=hint)
    for part in slices(len(offsets) - 1):
        here = offsets[part.start : part.stop + 1]
        # Compared, not subtracted: the difference of large offsets overflows.
        at = first_true(here[1:] < here[:-1])
        if at is not None:
            at += part.start
            value = f"{int(offsets[at])} then {int(offsets[at + 1])} at position {at}"
            raise InputError(f"{what} decrease: {value} (in {where})", hint=hint)


NOT_A_NUMBER = "Replace NaN and infinite values, with torch.nan_to_num for example."
"What to do about values that are not finite."


def unknown_target(unit: str) -> str:
    """What to do about targets that are not finite; ``unit`` has a target each: 'vertex' or 'graph'."""
    return f"Write any finite number for an unknown target, and leave the {unit} out of every split."


def check_finite(rows: Tensor, what: str, *, where: Where, hint: str = NOT_A_NUMBER) -> None:
    """Check that floating-point rows are finite."""
    for part in slices(len(rows), rows[:1].numel()):
        some = rows[part]
        # What is not finite stays so in a sum, which takes a fifth of the time. The sum of large numbers is no proof.
        if some.element_size() > 1 and some.sum().isfinite():
            continue
        wrong = ~torch.isfinite(some)
        at = first_true(wrong)
        if at is not None:
            column = first_true(wrong[at].reshape(-1))
            raise not_finite(some[at], column, what, where=where(part.start + at), hint=hint)


def not_finite(
    row: Rows,
    column: int | None,
    what: str,
    *,
    where: str,
    limit: str = "",
    hint: str = NOT_A_NUMBER,
    error: type[InputError] = InputError,
) -> InputError:
    """The error for a row with a value that is not finite; ``limit`` is a text about a limit that the value exceeds."""
    found = f"{float(row.reshape(-1)[column or 0])}{f' in column {column}' if row.ndim else ''}{limit}"
    return error(f"{what} is not finite: {found} (in {where})", hint=hint)


def check_columns(columns: Rows, num_columns: int, *, where: Where, error: type[InputError] = InputError) -> None:
    """Check the column of each entry of sparse features."""
    limit = f"there are {num_columns} features, numbered from 0"
    hint = "Number the columns from 0, or widen the matrix."
    _check_range(columns, 0, num_columns, "feature column", limit, hint, where, error)


def check_types(types: Rows, num_types: int | None, *, where: Where, error: type[InputError] = InputError) -> None:
    """Check edge types: from 0 to ``num_types - 1``, or to LARGEST_TYPE for None."""
    stop, limit = LARGEST_TYPE + 1, f"types go from 0 to {LARGEST_TYPE}"
    if num_types is not None:
        stop, limit = num_types, f"there are {num_types} edge types, numbered from 0"
    hint = "Number the types from 0, or state the right number of edge types."
    _check_range(types, 0, stop, "edge type", limit, hint, where, error)


def check_labels(
    labels: Rows, num_classes: int | None, *, where: Where, error: type[InputError] = InputError
) -> None:
    """Check labels: from -1 to ``num_classes - 1`` for [n]; 0 or 1 for [n, C]. None for no upper limit."""
    if labels.ndim == 1:
        limit = "-1 is for unknown" if num_classes is None else f"there are {num_classes} classes, numbered from 0"
        hint = "Number the classes from 0, write -1 for an unknown label, and state the right number of classes."
        _check_range(labels, -1, num_classes, "label", limit, hint, where, error)
        return
    for part in slices(len(labels), labels.shape[1]):
        some = labels[part]
        at = first_true((some != 0) & (some != 1))
        if at is not None:
            value = f"{some[at].tolist()}, but multi-label rows hold 0 and 1"
            raise error(
                f"label out of range: {value} (in {where(part.start + at)})",
                hint="Write 1 for each class that a vertex has, and 0 for the others, also where it is unknown. One label per vertex is "
                "one column.",
            )


AS_TENSOR = "Convert it with torch.as_tensor."
"What to do about an array that is no tensor."
IDS = (torch.int32, torch.int64)
"Types of ids."


def check_edge_data(edge_data: Mapping[str, Tensor] | None, num_edges: int) -> None:
    """Check that edge data are dense tensors with a row for each edge."""
    require_type(edge_data, Mapping, where="edge data", hint="Pass a mapping of name to tensor.", optional=True)
    for name, rows in ({} if edge_data is None else edge_data).items():
        where = f"edge data '{name}'"
        require_type(rows, Tensor, where=where, hint=AS_TENSOR)
        if rows.layout != torch.strided:
            raise wrong_form(rows, "a dense tensor", where=where, hint="Convert it with .to_dense().")
        if rows.ndim == 0 or len(rows) != num_edges:
            raise InputError(
                f"edge data has the wrong number of rows: {list(rows.shape)}, expected one row for each of {num_edges} edges (in {where})",
                hint="Pass one row per edge, in the topology's order (by destination, then source), or use from_coo.",
            )

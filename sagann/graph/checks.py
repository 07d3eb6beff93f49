"""Checks of values: of a graph in memory, and of rows on their way into a dataset.

Each check takes rows as a tensor or as a NumPy array. It names the first offending row by the text that ``where`` gives for
the row's index, and raises an error of class ``error``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.ranges import RANGES

Rows: TypeAlias = Any
"A tensor or a NumPy array."
Where: TypeAlias = Callable[[int], str]
"Function from the index of a row to a text that names the row."

CHECKED_AT_ONCE = 1 << 22
"Number of values in one slice: a slice is checked at memory speed and takes little memory."
LARGEST_TYPE = RANGES["num_edge_types"].high - 1
"Largest edge type."


def numbered(name: str, unit: str, first: int = 0) -> Where:
    """Name rows by number, from ``first`` on: "NAME, UNIT 17"."""
    return lambda at: f"{name}, {unit} {first + at}"


def form_of(value: object) -> str:
    """Type and shape of a tensor, and its layout where it is not dense, or the type of something else, for errors.

    Example:
        >>> form_of(torch.zeros(2, 3)), form_of([1])
        ('torch.float32 [2, 3]', 'a list')
    """
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
    value = f"{array.dtype} {list(array.shape)}, expected {expected}"
    return error(f"array has the wrong form: {value} (in {where})", hint=hint)


def mask_of_ids(num_rows: int) -> str:
    """How to make a mask of ids, for errors where ids are given in the place of a mask."""
    return f"Pass a mask of all vertices, not vertex ids: mask = torch.zeros({num_rows}, dtype=torch.bool); mask[ids] = True."


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
    if len(ids) == 0:
        return
    low, high = (ids.min(), ids.max()) if isinstance(ids, np.ndarray) else ids.aminmax()
    if low >= 0 and (num_vertices is None or high < num_vertices):
        return
    at = first_true(ids < 0 if num_vertices is None else (ids < 0) | (ids >= num_vertices))
    assert at is not None
    limit = "ids start at 0" if num_vertices is None else f"there are {num_vertices} {units}, numbered from 0"
    hint = f"Number the {units} from 0 without gaps, or state the right number of {units}."
    if rows_of and ids[at] >= 0:
        limit, hint = f"{limit}: the rows of {rows_of}", f"Give each vertex a row in {rows_of}, or correct the id."
    raise error(f"{side} id out of range: {int(ids[at])}, but {limit} (in {where(at)})", hint=hint)


def check_offsets(
    offsets: Tensor, end: int, what: str, *, where: str, error: type[InputError] = InputError
) -> None:
    """Check that offsets start at 0, never decrease, and end at ``end``; ``what`` names them in the plural."""
    hint = "Pass offsets that start at 0, never decrease, and end at the number of entries."
    if offsets[0] != 0 or offsets[-1] != end:
        value = f"from {int(offsets[0])} to {int(offsets[-1])}, expected 0 to {end}"
        raise error(f"{what} have the wrong ends: {value} (in {where})", hint=hint)
    for part in slices(len(offsets) - 1):
        here = offsets[part.start : part.stop + 1]
        # Compared, not subtracted: the difference of large offsets overflows.
        at = first_true(here[1:] < here[:-1])
        if at is not None:
            at += part.start
            value = f"{int(offsets[at])} then {int(offsets[at + 1])} at position {at}"
            raise error(f"{what} decrease: {value} (in {where})", hint=hint)


NOT_A_NUMBER = "Replace NaN and infinite values, with torch.nan_to_num for example."
"What to do about values that are not finite."


def unknown_target(unit: str) -> str:
    """What to do about targets that are not finite; ``unit`` has a target each: 'vertex' or 'graph'."""
    return f"Write any finite number for an unknown target, and leave the {unit} out of every split."


def check_finite(rows: Tensor, what: str, *, where: Where, hint: str = NOT_A_NUMBER) -> None:
    """Check that floating-point rows are finite."""
    # What is not finite stays so in a sum, which takes a fifth of the time. The sum of large numbers is no proof.
    if rows.element_size() > 1 and rows.sum().isfinite():
        return
    wrong = ~torch.isfinite(rows)
    at = first_true(wrong)
    if at is not None:
        raise not_finite(rows[at], first_true(wrong[at].reshape(-1)), what, where=where(at), hint=hint)


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
    at = first_true((columns < 0) | (columns >= num_columns))
    if at is not None:
        raise error(
            f"feature column out of range: {int(columns[at])}, but there are {num_columns} features, numbered "
            f"from 0 (in {where(at)})",
            hint="Number the columns from 0, or widen the matrix.",
        )


def check_types(types: Rows, num_types: int | None, *, where: Where, error: type[InputError] = InputError) -> None:
    """Check edge types, integers of at least 32 bits: from 0 to ``num_types - 1``, or to LARGEST_TYPE for None."""
    at = first_true((types < 0) | (types >= (LARGEST_TYPE + 1 if num_types is None else num_types)))
    if at is not None:
        limit = f"types go from 0 to {LARGEST_TYPE}"
        found = f"{int(types[at])}, but " + (
            limit if num_types is None else f"there are {num_types} edge types, numbered from 0"
        )
        raise error(
            f"edge type out of range: {found} (in {where(at)})",
            hint="Number the types from 0, or state the right number of edge types.",
        )


def check_labels(
    labels: Rows, num_classes: int | None, *, where: Where, error: type[InputError] = InputError
) -> None:
    """Check labels: from -1 to ``num_classes - 1`` for [n]; 0 or 1 for [n, C]. None for no upper limit."""
    if labels.ndim == 2:
        wrong, limit = (labels != 0) & (labels != 1), "multi-label rows hold 0 and 1"
        hint = "Write 1 for each class that a vertex has, and 0 for the others, also where it is unknown. One label per vertex is one column."
    else:
        wrong, limit = labels < -1, "-1 is for unknown"
        if num_classes is not None:
            wrong = wrong | (labels >= num_classes)
            limit = f"there are {num_classes} classes, numbered from 0"
        hint = "Number the classes from 0, write -1 for an unknown label, and state the right number of classes."
    at = first_true(wrong)
    if at is not None:
        value = f"{labels[at].tolist()}, but {limit}"
        raise error(f"label out of range: {value} (in {where(at)})", hint=hint)

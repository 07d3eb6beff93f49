"""Rows on their way into a dataset: labels, masks, and the cast to the stored dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sagann.errors import DatasetError
from sagann.graph.checks import numbered
from sagann.storage.row_source import ArrayRows, RowSource, as_stored, feature_dtype, label_rows, masks_of


def rows(values: Any, dtype: str = "int64") -> RowSource:
    return ArrayRows(array=np.array(values), file="x.npy", dtype=dtype, chunk_rows=2)


def read(source: RowSource) -> list[Any]:
    return [row for chunk in source.chunks() for row in chunk.rows.tolist()]


def test_labels_are_classes_or_0_and_1() -> None:
    for values in ([0, -1, 2], [[0], [-1], [2]], [0.0, np.nan, 2.0]):
        labels = label_rows(rows(values), np.array(values))
        assert (labels.dtype, labels.row_shape, read(labels)) == ("int64", (), [0, -1, 2])
    many = [[True, False], [False, False], [True, True]]
    labels = label_rows(rows(many), np.array(many))
    assert (labels.dtype, labels.row_shape, read(labels)) == ("uint8", (2,), [[1, 0], [0, 0], [1, 1]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1, 2.5], r"2\.5 is not an integer of 32 bits \(in x\.npy, row 2\)"),
        (np.array([0, 1, 2**63], np.uint64), r"9223372036854775808 does not fit 63 bits .*row 2\)"),
        ([[0, 1], [1, 1], [0, 3]], r"\[0, 3\], but multi-label rows hold 0 and 1 .*row 2\)"),
        ([[0.0, 1.0]], r"float64 \[1, 2\], expected integers \[num_vertices\]"),
        ([[[0]]], r"int64 \[1, 1, 1\], expected integers"),
    ],
)
def test_bad_labels_are_named(values: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        read(label_rows(rows(values), np.array(values)))


def test_masks_name_the_file_and_row_of_a_wrong_id() -> None:
    assert read(masks_of({"train": [rows([3, 0]), rows([3])]}, 4)["train"]) == [True, False, False, True]
    with pytest.raises(DatasetError, match=r"split 'val': vertex id out of range: 4, .*x\.npy, row 2\)"):
        masks_of({"val": [rows([0, 1, 4])]}, 4)


def test_a_cast_refuses_values_beyond_the_stored_dtype() -> None:
    where = numbered("x.npy", "row", 5)
    assert as_stored(np.array([1.5, 2.0]), "float32", "feature", where=where).dtype == np.float32
    with pytest.raises(DatasetError, match=r"feature is not finite: 1e\+39 in column 1, beyond float32.*row 6\)"):
        as_stored(np.array([[1.0, 2.0], [3.0, 1e39]]), "float32", "feature", where=where)
    with pytest.raises(DatasetError, match=r"feature is not finite: nan \(in x\.npy, row 5\)"):
        as_stored(np.array([np.nan]), "float64", "feature", where=where)
    assert [feature_dtype(np.zeros((1, 1), dtype), "x") for dtype in ("float16", "int8", "bool", ">f8")] == [
        "float16",
        "float32",
        "float32",
        "float64",
    ]

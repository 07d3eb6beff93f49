"""Rows on their way into a dataset: labels, masks, and the cast to the stored dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sagann.errors import DatasetError
from sagann.graph.checks import numbered
from sagann.storage import rows as module
from sagann.storage.rows import Rows, array_rows, as_features, as_labels, as_stored, map_array, masks_of


@pytest.fixture(autouse=True)
def chunks_of_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 16)


def rows(values: Any) -> Rows:
    return array_rows(np.array(values), "x.npy")


def read(source: Rows) -> list[Any]:
    return [row for chunk in source.chunks() for row in chunk.rows.tolist()]


def test_labels_are_classes_or_0_and_1() -> None:
    for values in ([0, -1, 2], [[0], [-1], [2]], [0.0, np.nan, 2.0]):
        labels = as_labels(rows(values))
        assert (labels.store_as, labels.row_shape, read(labels)) == ("int64", (), [0, -1, 2])
    for many in ([[True, False], [False, False], [True, True]], [[1.0, 0], [0, 0], [1, 1]]):
        labels = as_labels(rows(many))
        assert (labels.store_as, labels.row_shape, read(labels)) == ("uint8", (2,), [[1, 0], [0, 0], [1, 1]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1, 2.5], r"2\.5 is not an integer of 32 bits \(in x\.npy, row 2\)"),
        (np.array([0, 1, 2**63], np.uint64), r"9223372036854775808 does not fit 63 bits .*row 2\)"),
        ([[0, 1], [1, 1], [0, 3]], r"\[0, 3\], but multi-label rows hold 0 and 1 .*row 2\)"),
        ([[0.0, 0.5]], r"\[0.0, 0.5\], but multi-label rows hold 0 and 1 .*row 0\)"),
        ([[[0]]], r"int64 \[1, 1, 1\], expected integers"),
    ],
)
def test_bad_labels_are_named(values: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        read(as_labels(rows(values)))


def test_masks_name_the_file_and_row_of_a_wrong_id() -> None:
    assert read(masks_of({"train": [rows([3, 0]), rows([3])]}, 4)["train"]) == [True, False, False, True]
    with pytest.raises(DatasetError, match=r"split 'val': vertex id out of range: 4, .*x\.npy, row 2\)"):
        masks_of({"val": [rows([0, 1, 4])]}, 4)


def test_a_damaged_shape_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(10))
    damaged = (tmp_path / "x.npy").read_bytes().replace(b"(10,), }" + b" " * 19, b"(1" + b"0" * 20 + b",), }")
    (tmp_path / "x.npy").write_bytes(damaged)
    with pytest.raises(DatasetError, match=r"file cannot be read: .*too large.*x\.npy"):
        map_array(tmp_path / "x.npy")


def test_neither_an_archive_nor_objects_are_mapped(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", np.zeros(3))
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(DatasetError, match=r"file cannot be read: .*magic string.*x\.npy.*numpy\.save"):
        map_array(tmp_path / "x.npy")
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DatasetError, match=r"file cannot be read: .*[Oo]bject.*o\.npy.*numpy\.save"):
        map_array(tmp_path / "o.npy")


def test_a_cast_refuses_values_beyond_the_stored_dtype() -> None:
    where = numbered("x.npy", "row", 5)
    assert as_stored(np.array([1.5, 2.0]), "float32", "feature", where=where).dtype == np.float32
    with pytest.raises(DatasetError, match=r"feature is not finite: 1e\+39 in column 1, beyond float32.*row 6\)"):
        as_stored(np.array([[1.0, 2.0], [3.0, 1e39]]), "float32", "feature", where=where)
    with pytest.raises(DatasetError, match=r"feature is not finite: nan \(in x\.npy, row 5\)"):
        as_stored(np.array([np.nan]), "float64", "feature", where=where)
    stored = [as_features(rows(np.zeros((1, 1), dtype))).store_as for dtype in ("float16", "int8", "bool", ">f8")]
    assert stored == ["float16", "float32", "float32", "float64"]

"""Archives streamed into datasets give what reading them into memory gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sagann.storage.npz_import as npz_import_module
from sagann.errors import DatasetError
from sagann.storage import ImportOptions, check_dataset, dataset_info, import_npz, open_graph, read_npz
from sagann.storage.edge_chunk import EdgeColumn
from sagann.storage.npz import NpzArchive
from sagann.storage.npz_import import NpzEdges
from tests.storage.conftest import assert_same_graph


@pytest.mark.parametrize(
    "name", ["aifb", "amazon_computers", "citeseer", "cora", "ppi_homo_sapiens", "pubmed", "twitch"]
)
def test_exchange_dataset_imports_as_it_reads(data_folder: Path, tmp_path: Path, name: str) -> None:
    import_npz(data_folder / f"{name}.npz", tmp_path / "g", options=ImportOptions(memory_bytes=2**20))
    check_dataset(tmp_path / "g")
    assert_same_graph(open_graph(tmp_path / "g"), read_npz(data_folder / f"{name}.npz"))


def test_names_and_treatment_are_kept(data_folder: Path, tmp_path: Path) -> None:
    import_npz(data_folder / "aifb.npz", tmp_path / "a")
    info = dataset_info(tmp_path / "a")
    assert len(info["edge_type_names"]) == 45
    assert len(info["class_names"]) == 4
    assert not info["edges"]["symmetrised"]
    import_npz(data_folder / "twitch.npz", tmp_path / "t")
    assert dataset_info(tmp_path / "t")["edges"]["symmetrised"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("fortran", [False, True])
def test_layouts_of_archives(tmp_path: Path, *, packed: bool, fortran: bool) -> None:
    numbers = np.random.default_rng(0)
    order: Any = np.asfortranarray if fortran else np.ascontiguousarray
    arrays = {
        "edge_index": order(numbers.integers(0, 50, (2, 400)).astype(np.uint16)),
        "features": order(numbers.random((50, 3))),
        "labels": numbers.integers(0, 4, 50),
        "edge_weight": numbers.random(400).astype(np.float32),
        "edge_type": numbers.integers(0, 3, 400).astype(np.int32),
    }
    (np.savez_compressed if packed else np.savez)(tmp_path / "g.npz", **arrays)
    import_npz(tmp_path / "g.npz", tmp_path / "g")
    assert_same_graph(open_graph(tmp_path / "g"), read_npz(tmp_path / "g.npz"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"edge_index": np.array([[0, 9], [1, 1]])},
            r"source id out of range: 9, but there are 3.*edge_index, row 1\)",
        ),
        ({"edge_type": np.array([0])}, r"int64 \[1\], expected one value for each of 2 edges"),
        ({"edge_type": np.array([0, -1])}, r"edge type cannot be used: -1 is negative.*row 1\)"),
        (
            {"features": np.array([[0], [np.inf], [1]])},
            r"feature is not finite: inf in column 0.*features, row 1\)",
        ),
        ({"labels": np.array([0, 1])}, r"number of vertices is not clear|id out of range"),
        ({"train_mask": np.array([1, 0, 1])}, r"int64 \[3\], expected one row per vertex"),
        ({"labels": np.array([{}] * 3, dtype=object)}, r"archive holds pickled objects"),
    ],
)
def test_bad_values_are_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    whole = {"edge_index": np.array([[0, 1], [1, 2]]), "labels": np.array([0, 1, 1]), **arrays}
    np.savez(tmp_path / "g.npz", **whole)
    with pytest.raises(DatasetError, match=message):
        import_npz(tmp_path / "g.npz", tmp_path / "g")
    assert [entry.name for entry in tmp_path.iterdir()] == ["g.npz"]


@pytest.mark.parametrize("chunk_edges", [3, 2**20])
@pytest.mark.parametrize("fortran", [False, True])
def test_edge_features_stay_with_their_edges_in_either_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fortran: bool, chunk_edges: int
) -> None:
    monkeypatch.setattr(npz_import_module, "_CHUNK_EDGES", chunk_edges)
    order: Any = np.asfortranarray if fortran else np.ascontiguousarray
    ids = np.arange(20).reshape(2, 10)
    # As many features as edges would hide a transposed array from a check of shapes, so both are tried.
    wide, square = (np.arange(10 * width, dtype=np.float32).reshape(10, width) for width in (4, 10))
    np.savez(tmp_path / "g.npz", ids=ids, wide=order(wide), square=order(square))
    forms = {
        name: (name, EdgeColumn(dtype="float32", row_shape=array.shape[1:]))
        for name, array in (("wide", wide), ("square", square))
    }
    with NpzArchive(tmp_path / "g.npz") as archive:
        assert archive.members["wide"].fortran == fortran
        chunks = list(NpzEdges(archive=archive, edge_index="ids", data=forms).chunks())
    assert [chunk.first_row for chunk in chunks] == list(range(0, 10, chunk_edges))
    assert np.array_equal(np.concatenate([chunk.src for chunk in chunks]), ids[0])
    assert np.array_equal(np.concatenate([chunk.data["wide"] for chunk in chunks]), wide)
    assert np.array_equal(np.concatenate([chunk.data["square"] for chunk in chunks]), square)

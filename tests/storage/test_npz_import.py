"""Archives streamed into datasets give what reading them into memory gives."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sagann.storage.npz_graph as npz_graph_module
from sagann.errors import DatasetError
from sagann.storage import ImportOptions, check_dataset, dataset_info, import_npz, open_graph, read_npz
from sagann.storage.importer import ImportSource, import_dataset
from sagann.storage.npz import NpzArchive
from sagann.storage.npz_graph import NpzRows, npz_edges
from sagann.storage.vertex_files import open_features
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


SPARSE = {"features_indptr": [0, 1, 2, 2], "features_indices": [1, 0], "features_shape": [3, 2]}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f8", "int64", "bool"])
def test_numbers_are_read_as_they_are_imported(tmp_path: Path, dtype: str) -> None:
    numbers = np.array([0.1, 1.7, 2.0])
    sparse = {name: np.array(content) for name, content in SPARSE.items()}
    arrays = {**sparse, "features_data": numbers[:2].astype(dtype), "edge_weight": numbers.astype(dtype)}
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1, 2], [1, 2, 0]]), **arrays)
    import_npz(tmp_path / "g.npz", tmp_path / "g")
    assert_same_graph(open_graph(tmp_path / "g"), read_npz(tmp_path / "g.npz"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("edge_weight", r"'weight' is not finite: 1e\+39, beyond float32, .*edge_weight, row 1\)"),
        ("features_data", r"feature is not finite: 1e\+39, beyond float32, .*features, entry 1\)"),
    ],
)
def test_numbers_beyond_single_precision_are_refused(tmp_path: Path, name: str, message: str) -> None:
    arrays = {key: np.array(content) for key, content in SPARSE.items()}
    arrays |= {
        "features_data": np.ones(2),
        "edge_weight": np.ones(3),
        "edge_index": np.array([[0, 1, 2], [1, 2, 0]]),
    }
    arrays[name][1] = 1e39
    np.savez(tmp_path / "g.npz", **arrays)
    with pytest.raises(DatasetError, match=message):
        read_npz(tmp_path / "g.npz")
    with pytest.raises(DatasetError, match=message):
        import_npz(tmp_path / "g.npz", tmp_path / "g")


@pytest.mark.parametrize(
    "labels", [[[0], [1], [1]], [0.0, np.nan, 2.0], [[2.0], [np.nan], [0.0]], [[0, 1], [1, 1], [0, 0]]]
)
def test_labels_are_read_as_they_are_imported(tmp_path: Path, labels: Any) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 2]]), labels=np.array(labels))
    import_npz(tmp_path / "g.npz", tmp_path / "g")
    assert_same_graph(read_npz(tmp_path / "g.npz"), open_graph(tmp_path / "g"))


@pytest.mark.parametrize("ids", [[0, 1], [[0, 1], [1, 2], [2, 0], [0, 2]], [[[0, 1]], [[1, 2]]]])
def test_edges_of_another_shape_are_refused(tmp_path: Path, ids: Any) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.array(ids))
    with pytest.raises(DatasetError, match=r"no array 'edge_index' \[2, E\]"):
        import_npz(tmp_path / "g.npz", tmp_path / "g")
    with (
        NpzArchive(tmp_path / "g.npz") as archive,
        pytest.raises(DatasetError, match=r"expected integers \[2, E\]"),
    ):
        npz_edges(archive, {})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"edge_index": np.array([[0, 9], [1, 1]])},
            r"source id out of range: 9, but there are 3.*edge_index, row 1\)",
        ),
        ({"edge_type": np.array([0])}, r"data 'type' ends after 1 rows, and more edges follow"),
        ({"edge_type": np.array([0, -1])}, r"edge type out of range: -1, but types go from 0 .*row 1\)"),
        (
            {"features": np.array([[0], [np.inf], [1]])},
            r"feature is not finite: inf in column 0.*features, row 1\)",
        ),
        ({"labels": np.array([0, 1])}, r"number of vertices is not clear|id out of range"),
        ({"train_mask": np.array([1, 0, 1])}, r"int64 \[3\], expected 1 dimensions of booleans"),
        ({"labels": np.array([{}] * 3, dtype=object)}, r"archive holds pickled objects"),
        ({"labels": np.array([0, 2**64 - 1, 1], np.uint64)}, r"18446744073709551615 does not fit 63.*row 1\)"),
        ({"edge_weight": np.array([1, 1e300])}, r"'weight' is not finite: 1e\+300, beyond float32.*row 1\)"),
        # What only the whole shows is found in what was written.
        (
            {"train_mask": np.array([True, True, False]), "val_mask": np.array([False, True, False])},
            r"splits overlap: vertex 1 is in 'train' and in 'val'.*in archive g.npz, splits",
        ),
        (
            {"train_mask": np.array([True] * 3), "labels": np.array([0, -1, 1])},
            r"a split holds vertices without a label: vertex 1 has label -1",
        ),
        (
            {"train_mask": np.array([True] * 3), "labels": np.array([0, np.nan, 1])},
            r"a split holds vertices without a label: vertex 1 has label -1",
        ),
        ({"graph_ptr": np.array([0, 2, 1, 3])}, r"graph offsets decrease: 2 then 1"),
        ({"graph_ptr": np.array([0, 1, 3])}, r"an edge joins two graphs: 0 -> 1"),
        ({"graph_ptr": np.array([0, 3.5])}, r"float64 \[2\], expected 1 dimensions of integers"),
        ({"graph_ptr": np.array([[0, 3]])}, r"int64 \[1, 2\], expected 1 dimensions of integers"),
        (
            {"features": np.full((3, 2), np.longdouble("1e4000"))},
            r"feature is not finite: inf in column 0, beyond float32.*row 0\)",
        ),
    ],
)
def test_bad_values_are_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    whole = {"edge_index": np.array([[0, 1], [1, 2]]), "labels": np.array([0, 1, 1]), **arrays}
    np.savez(tmp_path / "g.npz", **whole)
    with pytest.raises(DatasetError, match=message):
        import_npz(tmp_path / "g.npz", tmp_path / "g")
    assert [entry.name for entry in tmp_path.iterdir()] == ["g.npz"]


def test_a_header_of_nothing_but_parentheses(tmp_path: Path) -> None:
    for depth in (150, 3000, 9000):
        text = "(" * depth + "\n"
        header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
        with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
            archive.writestr("edge_index.npy", header)
        (tmp_path / "f.npy").write_bytes(header)
        with pytest.raises(DatasetError, match="archive cannot be read"):
            read_npz(tmp_path / "g.npz")
        with pytest.raises(DatasetError, match="file cannot be read"):
            open_features(tmp_path / "f.npy")


def test_weights_that_add_up_to_too_much(tmp_path: Path) -> None:
    weights = np.full(3, 3e38, np.float32)
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 0, 1], [1, 1, 2]]), edge_weight=weights)
    with pytest.raises(DatasetError, match=r"add up to too much: 0 -> 1, beyond 3.4e\+38"):
        import_npz(tmp_path / "g.npz", tmp_path / "g", options=ImportOptions(coalesce=True))
    import_npz(tmp_path / "g.npz", tmp_path / "g")
    check_dataset(tmp_path / "g")


def test_edge_features_of_width_zero_are_counted_by_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz_graph_module, "_CHUNK_EDGES", 3)
    np.savez(tmp_path / "g.npz", edge_index=np.arange(20).reshape(2, 10), none=np.empty((10, 0)))
    with NpzArchive(tmp_path / "g.npz") as archive:
        data = {"none": NpzRows(archive=archive, name="none", dtype="float32")}
        assert [len(chunk.data["none"]) for chunk in npz_edges(archive, data).chunks()] == [3, 3, 3, 1]
        for symmetrise in (False, True):
            edges = npz_edges(archive, data)
            source = ImportSource(name="g", description="archive g", edges=edges, num_vertices=20)
            options = ImportOptions(symmetrise=symmetrise, overwrite=True)
            import_dataset(source, tmp_path / "g", options)
            assert open_graph(tmp_path / "g").topology.edge_data["none"].shape == (10 * (1 + symmetrise), 0)


def test_features_of_width_zero(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 2]]), features=np.empty((3, 0)))
    import_npz(tmp_path / "g.npz", tmp_path / "g")
    assert_same_graph(open_graph(tmp_path / "g"), read_npz(tmp_path / "g.npz"))


@pytest.mark.parametrize("chunk_edges", [3, 2**20])
@pytest.mark.parametrize("fortran", [False, True])
def test_edge_features_stay_with_their_edges_in_either_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fortran: bool, chunk_edges: int
) -> None:
    monkeypatch.setattr(npz_graph_module, "_CHUNK_EDGES", chunk_edges)
    order: Any = np.asfortranarray if fortran else np.ascontiguousarray
    ids = np.arange(20).reshape(2, 10)
    # As many features as edges would hide a transposed array from a check of shapes, so both are tried.
    wide, square = (np.arange(10 * width, dtype=np.float32).reshape(10, width) for width in (4, 10))
    np.savez(tmp_path / "g.npz", edge_index=ids, wide=order(wide), square=order(square))
    with NpzArchive(tmp_path / "g.npz") as archive:
        assert archive.members["wide"].fortran == fortran
        data = {name: NpzRows(archive=archive, name=name, dtype="float32") for name in ("wide", "square")}
        chunks = list(npz_edges(archive, data).chunks())
    assert [chunk.first_row for chunk in chunks] == list(range(0, 10, chunk_edges))
    assert np.array_equal(np.concatenate([chunk.src for chunk in chunks]), ids[0])
    assert np.array_equal(np.concatenate([chunk.data["wide"] for chunk in chunks]), wide)
    assert np.array_equal(np.concatenate([chunk.data["square"] for chunk in chunks]), square)

"""Graphs in .npz files: what is read and imported, and the archives that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sagann.storage.npz_graph as npz_graph_module
from sagann.errors import DatasetError
from sagann.storage import ImportOptions, check_dataset, import_npz, open_graph, read_npz
from sagann.storage.manifest import read_manifest
from sagann.storage.npz_graph import arrays_left_out
from tests.storage.conftest import assert_same_graph

# vertices, directed edges after both directions are there, features, classes, graphs, splits
EXPECTED = {
    "cora": (2708, 10556, 1433, 7, 1, {"train": 140, "val": 500, "test": 1000}),
    # 37,845 pairs in both directions and 894 self-loops
    "ppi_homo_sapiens": (3890, 76584, 0, 50, 1, {}),
    "twitch": (36890, 2 * 492575, 3170, 2, 7, {}),
    "aifb": (8285, 29043, 0, 4, 1, {"train": 140, "test": 36}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_exchange_dataset_opens_as_published_and_imports_as_it_reads(
    data_folder: Path, tmp_path: Path, name: str
) -> None:
    graph = read_npz(data_folder / f"{name}.npz")
    vertices, edges, features, classes, graphs, splits = EXPECTED[name]
    assert (graph.num_vertices, graph.num_edges, graph.num_features) == (vertices, edges, features)
    assert (graph.num_classes, graph.num_graphs, graph.name) == (classes, graphs, name)
    assert {split: int(mask.sum()) for split, mask in graph.splits.items()} == splits
    assert graph.multi_label == (name == "ppi_homo_sapiens")
    assert (graph.num_edge_types, len(graph.edge_type_names)) == ((45, 45) if name == "aifb" else (0, 0))
    if name == "twitch":
        assert graph.graph_names == ("DE", "ENGB", "ES", "FR", "PTBR", "RU", "TW")
    import_npz(data_folder / f"{name}.npz", tmp_path / "g", options=ImportOptions(memory_bytes=2**20))
    check_dataset(tmp_path / "g")
    assert_same_graph(open_graph(tmp_path / "g"), graph)
    if name in ("aifb", "twitch"):
        assert read_manifest(tmp_path / "g").edges["symmetrised"] == (name == "twitch")


def test_answers_of_graphs_are_read_and_imported(tmp_path: Path) -> None:
    file = archive(
        tmp_path,
        {"num_graph_classes": 4},
        graph_ptr=np.array([0, 3, 3, 4]),
        graph_labels=np.array([2.0, np.nan, 0.0]),
        graph_targets=np.array([[1], [2], [3]]),
        graph_train_mask=np.array([True, False, False]),
        graph_test_mask=np.array([False, False, True]),
        labels=np.array([1, 1, 0, 2]),
    )
    graph = read_npz(file)
    assert (graph.num_classes, graph.num_graph_classes) == (3, 4)
    assert graph.graph_labels.tolist() == [2, -1, 0]
    assert graph.graph_targets.tolist() == [1.0, 2.0, 3.0]
    assert {name: mask.tolist() for name, mask in graph.graph_splits.items()} == {
        "train": [True, False, False],
        "test": [False, False, True],
    }
    import_npz(file, tmp_path / "out")
    assert_same_graph(open_graph(tmp_path / "out"), graph)


def archive(folder: Path, description: dict[str, Any] | None = None, **arrays: Any) -> Path:
    np.savez(folder / "g.npz", **{"edge_index": np.array([[0, 1, 1], [1, 2, 1]]), **arrays})
    if description is not None:
        (folder / "g.json").write_text(json.dumps(description))
    return folder / "g.npz"


def edges(path: Path) -> list[tuple[int, int]]:
    topology = read_npz(path).topology
    return list(zip(topology.indices.tolist(), topology.edge_dst().tolist(), strict=True))


def test_direction_follows_the_description(tmp_path: Path) -> None:
    as_stored = [(0, 1), (1, 1), (1, 2)]
    assert edges(archive(tmp_path)) == as_stored
    assert edges(archive(tmp_path, {"directed": True, "edges_stored": "each once"})) == as_stored
    assert edges(archive(tmp_path, {"directed": False, "edges_stored": "both directions"})) == as_stored
    once = {"directed": False, "edges_stored": "each undirected edge once"}
    assert edges(archive(tmp_path, once)) == [(1, 0), (0, 1), (1, 1), (2, 1), (1, 2)]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"graph_ptr": np.array([0, 1, 3]), "graph_targets": np.ones(3)},
            r"number of graphs is not clear: 3 rows, but graph_ptr says 2 .*graph_targets",
        ),
        ({"graph_labels": np.array([0])}, r"number of graphs is not clear: 1 rows, but there is no graph_ptr"),
        (
            {"edge_index": np.array([[0, 1], [1, 3]]), "labels": np.array([0, 1, 1])},
            r"id out of range: 3, .*g\.npz, edge_index, row 1\)",
        ),
        ({"edge_index": np.array([[0, -1], [1, 0]])}, r"id out of range: -1"),
        ({"edge_index": np.array([[0], [1], [2]])}, r"no edges: edge_index has the shape .*, expected \[2, E\]"),
        ({"edge_index": np.array([[0.5], [1]])}, r"float64 \[2, 1\], expected integers \[2, E\]"),
        ({"labels": np.array([{}], dtype=object)}, r"archive holds pickled objects: array 'labels'.*never does"),
        ({"train_mask": np.array([0, 1, 1])}, r"int64 \[3\], expected a vector of booleans"),
        (
            {"features": np.zeros((2, 2)), "labels": np.array([0, 1, 0])},
            r"number of vertices is not clear: 3 rows, but .*features says 2",
        ),
        ({"features_indptr": np.array([0, 1, 1, 1])}, r"not complete: missing features_indices, features_data"),
        (
            {"targets": np.array([0.5, np.nan, 1])},
            r"target is not finite: nan .*g\.npz, targets, row 1\). Write any finite number",
        ),
        ({"targets": np.array([0.5, 1e39, 1])}, r"target is not finite: 1e\+39.*beyond float32"),
        ({"targets": np.zeros((3, 1, 1))}, r"float64 \[3, 1, 1\], expected numbers \[num_vertices\], or"),
        (
            {"labels": np.array([0, 0.5, 1])},
            r"label is not an integer: 0\.5 .*g\.npz, labels, row 1\)\. .*Values to predict in a regression are 'targets'",
        ),
        (
            {"edge_type": np.array([0])},
            r"data 'type' ends after 1 rows, and more edges follow .*g\.npz, edge_type\)",
        ),
        ({"edge_type": np.array([0, -1])}, r"edge type out of range: -1, but types go from 0 .*row 1\)"),
        (
            {"features": np.array([[0], [np.inf], [1]])},
            r"feature is not finite: inf in column 0.*features, row 1\)",
        ),
        ({"labels": np.array([0, 2**64 - 1, 1], np.uint64)}, r"18446744073709551615 does not fit 63.*row 1\)"),
        # What only the whole shows is found in what was written.
        (
            {"train_mask": np.array([True, True, False]), "val_mask": np.array([False, True, False])},
            r"archive g.npz: splits overlap: vertex 1 is in 'train' and in 'val'",
        ),
        ({"graph_ptr": np.array([0, 3.5])}, r"float64 \[2\], expected a vector of integers"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = archive(tmp_path, **{"edge_index": np.array([[0, 1], [1, 2]]), **arrays})
    for action in (read_npz, lambda source: import_npz(source, tmp_path / "g")):
        with pytest.raises(DatasetError, match=message):
            action(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["g.npz"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            {"features_indptr": np.array([0, 2, 1, 2])},
            r"offsets of sparse features decrease: 2 then 1 at position 1",
        ),
        (
            {"features_indices": np.array([0, 4])},
            r"feature column out of range: 4, but there are 4 features, .*features_indices, entry 1\)",
        ),
        ({"features_shape": np.array([3, 2**31])}, r"number of columns is an integer from 0 to 2\^31 - 1"),
        (
            {"features_data": np.ones(1, np.float32)},
            r"columns and values of sparse features differ in number: 2 columns and 1 values",
        ),
        (
            {"features_data": np.array([1, 1e39])},
            r"feature is not finite: 1e\+39, beyond float32, .*features_data, entry 1\)",
        ),
    ],
)
def test_bad_sparse_features_are_refused(tmp_path: Path, spoil: dict[str, Any], message: str) -> None:
    parts = {
        "features_indptr": np.array([0, 1, 1, 2]),
        "features_indices": np.array([0, 3]),
        "features_data": np.ones(2, np.float32),
        "features_shape": np.array([3, 4]),
    }
    assert read_npz(archive(tmp_path, **parts)).num_features == 4
    for action in (read_npz, lambda source: import_npz(source, tmp_path / "g")):
        with pytest.raises(DatasetError, match=message):
            action(archive(tmp_path, **(parts | spoil)))


@pytest.mark.parametrize("text", ["{", '{"num_classes": 2, "class_names": ["a"]}', "\xff"])
def test_bad_descriptions_are_refused(tmp_path: Path, text: str) -> None:
    path = archive(tmp_path)
    (tmp_path / "g.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DatasetError, match=r"description of an archive cannot be used: .*g\.json"):
        read_npz(path)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"num_classes": 0}, "label"),
        ({"num_edge_types": 0}, "edge type"),
        ({"num_nodes": 0}, "id out of range|differ in number|number of vertices"),
    ],
)
def test_what_a_description_says_is_not_overruled(
    tmp_path: Path, description: dict[str, Any], message: str
) -> None:
    arrays = {"labels": np.array([0, 1, 2]), "edge_type": np.array([0, 1, 2])}
    path = archive(tmp_path, description, **arrays)
    with pytest.raises(DatasetError, match=message):
        read_npz(path)
    with pytest.raises(DatasetError, match=message):
        import_npz(path, tmp_path / "g")


@pytest.mark.parametrize(
    ("description", "num_classes", "message"),
    [
        ({"class_names": ["a", "b", "c"]}, 4, "names do not fit: 3 class_names, but num_classes is 4"),
        ({"edge_type_names": ["a", "b"]}, None, "names do not fit: 2 edge_type_names, but num_edge_types is 0"),
        ({"class_names": ["a", "b"]}, None, r"uint8 \[3, 3\], expected torch.uint8 \[num_vertices, 2\]"),
    ],
)
def test_an_import_refuses_names_and_counts_that_do_not_fit(
    tmp_path: Path, description: dict[str, Any], num_classes: int | None, message: str
) -> None:
    labels = np.eye(3, dtype=np.uint8) if "expected" in message else np.array([0, 1, 2])
    path = archive(tmp_path, description, labels=labels)
    with pytest.raises(DatasetError, match=rf"archive g\.npz: .*{message}"):
        import_npz(path, tmp_path / "g", options=ImportOptions(num_classes=num_classes))
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("fortran", [False, True])
def test_layouts_of_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, packed: bool, fortran: bool
) -> None:
    monkeypatch.setattr(npz_graph_module, "CHUNK_EDGES", 90)
    numbers = np.random.default_rng(0)
    order: Any = np.asfortranarray if fortran else np.ascontiguousarray
    arrays = {
        "edge_index": order(numbers.integers(0, 50, (2, 400)).astype(np.uint16)),
        "features": order(numbers.random((50, 3), np.float32)),
        "labels": numbers.integers(0, 4, 50),
        "edge_weight": numbers.random(400).astype(np.float32),
        "edge_type": numbers.integers(0, 3, 400).astype(np.int32),
    }
    (np.savez_compressed if packed else np.savez)(tmp_path / "g.npz", **arrays)
    import_npz(tmp_path / "g.npz", tmp_path / "g")
    graph = read_npz(tmp_path / "g.npz")
    assert_same_graph(open_graph(tmp_path / "g"), graph)
    assert np.array_equal(graph.features.numpy(), arrays["features"])
    found = zip(graph.topology.indices.tolist(), graph.topology.edge_data["weight"].tolist(), strict=True)
    assert sorted(found) == sorted(
        zip(arrays["edge_index"][0].tolist(), arrays["edge_weight"].tolist(), strict=True)
    )


SPARSE = {"features_indptr": [0, 1, 2, 2], "features_indices": [1, 0], "features_shape": [3, 2]}


def test_weights_that_add_up_to_too_much(tmp_path: Path) -> None:
    weights = np.full(3, 3e38, np.float32)
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 0, 1], [1, 1, 2]]), edge_weight=weights)
    with pytest.raises(DatasetError, match=r"add up to too much: 0 -> 1, beyond 3.4e\+38"):
        import_npz(tmp_path / "g.npz", tmp_path / "g", options=ImportOptions(coalesce=True))
    import_npz(tmp_path / "g.npz", tmp_path / "g")
    check_dataset(tmp_path / "g")


def sparse_of(dtype: str) -> dict[str, Any]:
    numbers = np.array([0.1, 1.7, 2.0]).astype(dtype)
    return {**SPARSE, "features_data": numbers[:2], "edge_weight": numbers}


@pytest.mark.parametrize(
    "arrays",
    [
        *({"labels": labels} for labels in ([[0], [1], [1]], [[2.0], [np.nan], [0.0]], [[0, 1], [1, 1], [0, 0]])),
        *(sparse_of(dtype) for dtype in ("float16", ">f8", "int64")),
        {"features": np.empty((3, 0))},
    ],
)
def test_arrays_are_read_as_they_are_imported(tmp_path: Path, arrays: dict[str, Any]) -> None:
    path = archive(tmp_path, edge_index=np.array([[0, 1, 2], [1, 2, 0]]), **arrays)
    import_npz(path, tmp_path / "g")
    assert_same_graph(open_graph(tmp_path / "g"), read_npz(path))


@pytest.mark.parametrize("targets", [np.arange(3) * 0.5, np.arange(3)[:, None], np.arange(6).reshape(3, 2) / 2])
def test_targets_are_read_and_imported_beside_labels(tmp_path: Path, targets: Any) -> None:
    path = archive(tmp_path, targets=np.asfortranarray(targets), labels=np.array([0, 1, -1]))
    graph = read_npz(path)
    assert graph.labels.tolist() == [0, 1, -1]
    assert graph.targets.dtype == torch.float32
    assert graph.targets.tolist() == (targets[:, 0] if targets.shape[1:] == (1,) else targets).tolist()
    import_npz(path, tmp_path / "g")
    assert_same_graph(open_graph(tmp_path / "g"), graph)
    check_dataset(tmp_path / "g")


@pytest.mark.parametrize("once", [True, False])
def test_a_split_of_edges_stays_with_them(tmp_path: Path, once: bool) -> None:
    ends = np.array([[3, 0, 2], [1, 1, 0]])
    np.savez(tmp_path / "g.npz", edge_index=ends, edge_split=np.array([2, 0, 1], np.uint8))
    stored = "each undirected edge once" if once else "both directions"
    (tmp_path / "g.json").write_text(json.dumps({"directed": False, "edges_stored": stored}))
    expected = {(3, 1): 2, (0, 1): 0, (2, 0): 1}
    expected |= {(dst, src): split for (src, dst), split in expected.items()} if once else {}
    import_npz(tmp_path / "g.npz", tmp_path / "g")
    for graph in (read_npz(tmp_path / "g.npz"), open_graph(tmp_path / "g")):
        edges = zip(graph.topology.indices.tolist(), graph.topology.edge_dst().tolist(), strict=True)
        assert dict(zip(edges, graph.topology.edge_data["split"].tolist(), strict=True)) == expected
    assert arrays_left_out(tmp_path / "g.npz") == []


def test_arrays_that_are_not_read_are_told(tmp_path: Path) -> None:
    arrays = {"edge_index": np.array([[0], [1]]), "labels": np.array([0, 1]), "graph_ptr": np.array([0, 2])}
    np.savez(tmp_path / "known.npz", **arrays)
    np.savez(tmp_path / "more.npz", **arrays, pos=np.zeros((2, 3), np.float32), graph_part=np.zeros(1, np.uint8))
    assert arrays_left_out(tmp_path / "known.npz") == []
    assert arrays_left_out(tmp_path / "more.npz") == ["graph_part (uint8 [1])", "pos (float32 [2, 3])"]


def test_a_name_may_be_empty_and_edge_data_may_not_wrap_around(tmp_path: Path) -> None:
    ends = np.array([[0, 1], [1, 2]])
    assert read_npz(archive(tmp_path, {"name": ""}, edge_index=ends)).name == ""
    path = archive(tmp_path, edge_index=ends, edge_split=np.array([0, 2**32 + 1]))
    with pytest.raises(DatasetError, match=r"edge data 'split' is out of range: 4294967297, .*int32.*row 1\)"):
        read_npz(path)

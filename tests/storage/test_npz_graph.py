"""Graphs in .npz files: the exchange datasets, and archives that are no good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sagann.errors import DatasetError
from sagann.storage import import_npz, read_npz

# vertices, directed edges after both directions are there, features, classes, graphs, splits
EXPECTED = {
    "cora": (2708, 10556, 1433, 7, 1, {"train": 140, "val": 500, "test": 1000}),
    "citeseer": (3327, 9228, 3703, 6, 1, {"train": 120, "val": 500, "test": 1000}),
    "pubmed": (19717, 88651, 500, 3, 1, {"train": 60, "val": 500, "test": 1000}),
    "amazon_computers": (13752, 287209, 767, 10, 1, {}),
    "coauthor_cs": (18333, 163788, 6805, 15, 1, {}),
    "blogcatalog": (10312, 667966, 0, 39, 1, {}),
    # 37,845 pairs in both directions and 894 self-loops
    "ppi_homo_sapiens": (3890, 76584, 0, 50, 1, {}),
    "twitch": (36890, 2 * 492575, 3170, 2, 7, {}),
    "aifb": (8285, 29043, 0, 4, 1, {"train": 140, "test": 36}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_exchange_dataset_opens_as_published(data_folder: Path, name: str) -> None:
    graph = read_npz(data_folder / f"{name}.npz")
    vertices, edges, features, classes, graphs, splits = EXPECTED[name]
    assert (graph.num_vertices, graph.num_edges, graph.num_features) == (vertices, edges, features)
    assert (graph.num_classes, graph.num_graphs, graph.name) == (classes, graphs, name)
    assert {split: int(mask.sum()) for split, mask in graph.splits.items()} == splits
    assert graph.multi_label == (name in ("blogcatalog", "ppi_homo_sapiens"))


def test_values_are_those_of_the_archive(data_folder: Path) -> None:
    graph = read_npz(data_folder / "cora.npz")
    with np.load(data_folder / "cora.npz") as archive:
        src, dst = archive["edge_index"]
        dense = np.zeros((2708, 1433), np.float32)
        for row in range(2708):
            span = slice(archive["features_indptr"][row], archive["features_indptr"][row + 1])
            if row in (0, 17, 2707):
                dense[row, archive["features_indices"][span]] = archive["features_data"][span]
        labels = archive["labels"]
    found = set(zip(graph.topology.indices.tolist(), graph.topology.edge_dst().tolist(), strict=True))
    assert found == set(zip(src.tolist(), dst.tolist(), strict=True))
    assert graph.features is not None
    assert graph.features.layout == torch.sparse_csr
    assert np.array_equal(graph.features.to_dense().numpy()[[0, 17, 2707]], dense[[0, 17, 2707]])
    assert graph.labels is not None
    assert np.array_equal(graph.labels.numpy(), labels)


def test_edge_types_and_graph_names_are_kept(data_folder: Path) -> None:
    aifb = read_npz(data_folder / "aifb.npz")
    assert aifb.num_edge_types == 45
    assert int(aifb.topology.edge_data["type"].max()) == 44
    assert read_npz(data_folder / "twitch.npz").graph_names == ("DE", "ENGB", "ES", "FR", "PTBR", "RU", "TW")


@pytest.mark.slow
def test_large_exchange_dataset_opens(data_folder: Path) -> None:
    graph = read_npz(data_folder / "facebook10.npz")
    assert (graph.num_vertices, graph.num_edges, graph.num_graphs) == (212224, 2 * 7574471, 10)


def test_graph_regression_is_refused_by_name(data_folder: Path) -> None:
    with pytest.raises(DatasetError, match=r"task not supported: 'graph_targets'.*qm9_20k\.npz"):
        read_npz(data_folder / "qm9_20k.npz")


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
            {"edge_index": np.array([[0, 1], [1, 3]]), "labels": np.array([0, 1, 1])},
            r"id out of range: 3, .*g\.npz, edge_index, row 1\)",
        ),
        ({"edge_index": np.array([[0, -1], [1, 0]])}, r"id out of range: -1"),
        ({"edge_index": np.array([0, 1])}, r"no array .edge_index. \[2, E\]; it holds edge_index"),
        ({"labels": np.array([0, 0.5, 1])}, r"label is not an integer: 0\.5 .*g\.npz, labels, row 1"),
        ({"edge_index": np.array([[0], [1], [2]])}, r"no array .edge_index. \[2, E\]; it holds edge_index"),
        ({"edge_index": np.array([[0.5], [1]])}, r"float64 \[2, 1\], expected integers \[2, E\]"),
        ({"labels": np.array([{}], dtype=object)}, r"archive holds pickled objects: array 'labels'.*never does"),
        ({"labels": np.array([[0, 2]] * 3)}, r"label out of range: \[0, 2\], but multi-label rows hold 0 and 1"),
        ({"labels": np.array(["a", "b", "c"])}, r"<U1 \[3\], expected integers \[num_vertices\]"),
        ({"train_mask": np.array([0, 1, 1])}, r"int64 \[3\], expected 1 dimensions of booleans"),
        (
            {"edge_type": np.array([0, 1])},
            r"data 'type' ends after 2 rows, and more edges follow .*g\.npz, edge_type\)",
        ),
        ({"features": np.full((3, 2), np.nan)}, r"(?i)nan"),
        (
            {"features": np.zeros((2, 2)), "labels": np.array([0, 1, 0])},
            r"number of vertices is not clear: 3 rows, but .*features says 2",
        ),
        ({"features_indptr": np.array([0, 1, 1, 1])}, r"not complete: missing features_indices, features_data"),
        ({"graph_ptr": np.array([0, 1, 3])}, r"an edge joins two graphs"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        read_npz(archive(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            {"features_indptr": np.array([0, 2, 1, 2])},
            r"offsets of sparse features decrease: 2 then 1 at position 1",
        ),
        (
            {"features_indptr": np.array([0, 1, 1, 1])},
            r"offsets of sparse features have the wrong ends: from 0 to 1, expected 0 to 2",
        ),
        (
            {"features_indices": np.array([0, 4])},
            r"feature column out of range: 4, but there are 4 features, .*entry 1\)",
        ),
        ({"features_shape": np.array([5, 4])}, r"but there are offsets for 3 rows"),
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
    with pytest.raises(DatasetError, match=message):
        read_npz(archive(tmp_path, **(parts | spoil)))


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path).read_bytes()
    path = tmp_path / "bad.npz"
    for data in (b"", b"PK", whole[: len(whole) // 2], b"\0" * 100, whole[:210] + b"\xff" + whole[211:]):
        path.write_bytes(data)
        with pytest.raises(DatasetError, match=r"cannot be read: .*bad\.npz"):
            read_npz(path)
    with pytest.raises(DatasetError, match=r"file not found"):
        read_npz(tmp_path / "absent.npz")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"num_classes": "7"}',
        '{"num_classes": true}',
        '{"num_classes": 2, "class_names": ["a"]}',
        '{"num_edge_types": 1, "edge_type_names": ["a", "b"]}',
        '{"num_nodes": -1}',
        '{"class_names": [1]}',
        '{"directed": "no"}',
        '{"directed": false, "edges_stored": false}',
        '{"name": 3}',
        "\xff",
    ],
)
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
        ({"class_names": ["a", "b"]}, "label"),
        ({"edge_type_names": ["a", "b"]}, "edge type"),
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


def test_arrays_in_fortran_order_and_compressed_read_alike(tmp_path: Path) -> None:
    features = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez_compressed(
        tmp_path / "g.npz",
        edge_index=np.asfortranarray(np.array([[0, 1, 1], [1, 2, 1]])),
        features=np.asfortranarray(features),
    )
    graph = read_npz(tmp_path / "g.npz")
    assert edges(tmp_path / "g.npz") == [(0, 1), (1, 1), (1, 2)]
    assert graph.features is not None
    assert np.array_equal(graph.features.numpy(), features)

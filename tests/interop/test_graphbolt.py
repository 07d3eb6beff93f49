"""GraphBolt's raw layout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sagann.errors import DatasetError, InputError, MissingDependencyError
from sagann.graph import Graph
from sagann.interop import import_graphbolt
from sagann.storage import check_dataset, open_graph

pytest.importorskip("yaml")

METADATA = """\
dataset_name: small
graph:
  nodes:
    - num: 4
  edges:
    - format: csv
      path: edges.csv
feature_data:
  - {domain: node, type: null, name: feat, format: numpy, path: x.npy}
  - {domain: edge, type: null, name: weight, format: numpy, path: w.npy}
tasks:
  - name: node_classification
    num_classes: 3
    train_set:
      - data:
          - {name: seeds, format: numpy, path: train.npy}
          - {name: labels, format: numpy, path: train_y.npy}
    validation_set:
      - data:
          - {name: seeds, format: numpy, path: val.npy}
          - {name: labels, format: numpy, path: val_y.npy}
"""


def folder_with(root: Path, metadata: str = METADATA) -> Path:
    folder = root / "small"
    folder.mkdir()
    (folder / "metadata.yaml").write_text(metadata)
    (folder / "edges.csv").write_text("0,1\n1,2\n3,0\n")
    np.save(folder / "edges.npy", np.array([[0, 1, 3], [1, 2, 0]]))
    np.save(folder / "x.npy", np.eye(4, dtype=np.float32))
    np.save(folder / "w.npy", np.array([1.0, 2.0, 3.0]))
    np.save(folder / "train.npy", np.array([0, 3]))
    np.save(folder / "train_y.npy", np.array([2, 1]))
    np.save(folder / "val.npy", np.array([1]))
    np.save(folder / "val_y.npy", np.array([0]))
    return folder


def imported(folder: Path) -> Graph:
    import_graphbolt(folder, folder.parent / "out")
    check_dataset(folder.parent / "out")
    return open_graph(folder.parent / "out")


@pytest.mark.parametrize(("form", "file"), [("csv", "edges.csv"), ("numpy", "edges.npy")])
def test_homogeneous_graph(tmp_path: Path, form: str, file: str) -> None:
    text = METADATA.replace("format: csv", f"format: {form}").replace("edges.csv", file)
    graph = imported(folder_with(tmp_path, text))
    assert (graph.name, graph.num_vertices, graph.num_classes, graph.num_features) == ("small", 4, 3, 4)
    assert graph.topology.indices.tolist() == [3, 0, 1]
    assert graph.topology.edge_data["weight"].tolist() == [3.0, 1.0, 2.0]
    assert graph.labels.tolist() == [2, 0, -1, 1]
    assert graph.splits["train"].tolist() == [True, False, False, True]
    assert set(graph.splits) == {"train", "val"}


PARTS = """\
      - data:
          - {name: seeds, format: numpy, path: more.npy}
          - {name: labels, format: numpy, path: more_y.npy}
    validation_set:
"""


def test_a_set_in_two_parts(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, METADATA.replace("    validation_set:\n", PARTS))
    np.save(folder / "more.npy", np.array([2]))
    np.save(folder / "more_y.npy", np.array([[1]]))
    graph = imported(folder)
    assert graph.splits["train"].tolist() == [True, False, True, True]
    assert graph.labels.tolist() == [2, 0, 1, 1]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("val_y.npy", [9], r"label out of range: 9, but there are 3 classes.*val_y\.npy, row 0\)"),
        ("train_y.npy", [0.0, 1.5], r"label is not an integer: 1\.5 .*train_y\.npy, row 1\)"),
        ("val_y.npy", [[0, 1, 1]], r"labels of the sets differ in form: rows have shape \[3\], but those of .*train_y\.npy \[\]"),
        ("val.npy", [7], r"split 'val': vertex id out of range: 7.*val\.npy, row 0\)"),
    ],
)  # fmt: skip
def test_bad_labels_are_named(tmp_path: Path, file: str, content: list[Any], message: str) -> None:
    folder = folder_with(tmp_path)
    np.save(folder / file, np.array(content))
    with pytest.raises(DatasetError, match=message):
        imported(folder)


@pytest.mark.parametrize(
    ("types", "form"), [([0, 1.9, 2.5], r"float64 \[3\]"), ([[0], [1], [2]], r"int64 \[3, 1\]")]
)
def test_edge_types_are_integers(tmp_path: Path, types: list[Any], form: str) -> None:
    folder = folder_with(tmp_path, METADATA.replace("name: weight", "name: type"))
    np.save(folder / "w.npy", np.array(types))
    with pytest.raises(DatasetError, match=rf"{form}, expected integers \[E\] .*w\.npy"):
        imported(folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("- num: 4", "- {type: user, num: 4}\n    - {type: item, num: 3}", r"a heterogeneous graph, with user, item"),
        ("format: csv\n", "format: csv\n      type: 'user:likes:item'\n", r"heterogeneous graph, with user:likes:item"),
        ("name: feat, format: numpy", "name: feat, format: torch", r"format 'torch' of 'x\.npy'.*may run code"),
        ("- num: 4", "- num: 3", r"source id out of range: 3|split 'train': vertex id out of range: 3"),
        ("num_classes: 3", "num_classes: 2", r"label out of range: 2, but there are 2 classes"),
        ("dataset_name: small", "x: !!python/object/apply:os.system ['true']", r"file cannot be read: .*must be YAML"),
    ],
)  # fmt: skip
def test_bad_metadata_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in METADATA
    with pytest.raises(DatasetError, match=message):
        imported(folder_with(tmp_path, METADATA.replace(old, new)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["small"]


def test_features_of_another_length_are_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    np.save(folder / "w.npy", np.ones(5))
    with pytest.raises(DatasetError, match=r"data 'weight' goes on after 3 rows, the number of edges .*w\.npy"):
        imported(folder)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'sagann\[graphbolt\]'"):
        imported(folder_with(tmp_path))


@pytest.mark.parametrize(
    ("stated", "changed", "message"),
    [
        ("num: 4", f"num: 0x{'f' * 5000}", "expected an integer .* for num, found a value with an integer of thousands"),
        ("num: 4", f"num: {2**47}", "the work does not fit memory: .* 2 splits of 140737488355328 vertices"),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(tmp_path: Path, stated: str, changed: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported(folder_with(tmp_path, METADATA.replace(stated, changed)))

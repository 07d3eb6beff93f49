"""PyG's Data objects, there and back; in memory, in a file, and imported from one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sagann.errors import InputError, MissingDependencyError
from sagann.graph import Graph
from sagann.interop import from_pyg, import_pyg, read_pyg, to_pyg
from sagann.storage import check_dataset, load_graph
from tests.interop.test_pyg_file import data_object as whole_object

pytest.importorskip("torch_geometric")

WAYS = ("object", "file", "import")


def graph_of(data: Any, way: str, folder: Path, **options: Any) -> Graph:
    if way == "object":
        return from_pyg(data, **options)
    torch.save(data, folder / "a.pt")
    if way == "file":
        return read_pyg(folder / "a.pt", **options)
    import_pyg(folder / "a.pt", folder / "a", **options)
    check_dataset(folder / "a")
    return load_graph(folder / "a")


def data_object(**fields: Any) -> Any:
    return whole_object(**{"x": torch.eye(4), "edge_attr": None, **fields})


def test_fields_are_taken_over_in_csc_order() -> None:
    graph = from_pyg(data_object(), name="small")
    assert graph.topology.indices.tolist() == [1, 2, 3, 0]
    assert graph.topology.edge_data["weight"].tolist() == [3, 4, 1, 2]
    assert graph.topology.edge_data["type"].tolist() == [0, 1, 0, 1]
    assert (graph.num_vertices, graph.num_classes, graph.num_edge_types, graph.name) == (4, 3, 2, "small")
    assert set(graph.splits) == {"train", "test"}


def test_a_number_of_classes_is_kept_without_labels() -> None:
    assert from_pyg(data_object(y=None), num_classes=5).num_classes == 5


def test_there_and_back_keeps_every_edge() -> None:
    data = data_object()
    back = to_pyg(from_pyg(data))
    edges = {tuple(pair) for pair in data.edge_index.t().tolist()}
    assert {tuple(pair) for pair in back.edge_index.t().tolist()} == edges
    assert torch.equal(back.x, data.x)
    assert torch.equal(back.y, data.y)
    assert torch.equal(back.train_mask, data.train_mask)
    weight = dict(zip(map(tuple, data.edge_index.t().tolist()), data.edge_weight.tolist(), strict=True))
    assert dict(zip(map(tuple, back.edge_index.t().tolist()), back.edge_weight.tolist(), strict=True)) == weight


def test_every_row_per_edge_is_edge_data_there_and_back() -> None:
    left_out = {"edge_label": torch.ones(4), "edge_label_index": torch.zeros(2, 4), "edge_count": 4}
    data = data_object(edge_time=torch.tensor([4, 3, 2, 1]), edge_pairs=torch.ones(3), **left_out)
    with pytest.warns(UserWarning, match=r"Left out of data: .*'edge_pairs' \(float32 \[3\]\)"):
        graph = from_pyg(data)
    assert set(graph.topology.edge_data) == {"weight", "type", "time"}
    assert graph.topology.edge_data["time"].tolist() == [2, 1, 4, 3]
    assert to_pyg(graph).edge_time.tolist() == [2, 1, 4, 3]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("y", "task", "labels", "targets"),
    [
        (torch.tensor([[0], [1], [2], [0]]), "auto", [0, 1, 2, 0], None),
        (torch.tensor([True, False, True, True]), "auto", [1, 0, 1, 1], None),
        (torch.tensor([0.5, 1, 2, 3]), "auto", None, [0.5, 1, 2, 3]),
        (torch.eye(4)[:, :2], "auto", [[1, 0], [0, 1], [0, 0], [0, 0]], None),
        (torch.tensor([0.0, 1, float("nan"), 1]), "classification", [0, 1, -1, 1], None),
        (torch.tensor([0.0, 1, 2, 1]), "regression", None, [0, 1, 2, 1]),
        (torch.tensor([[0, 3], [1, 4], [2, 5], [0, 0]]), "regression", None, [[0, 3], [1, 4], [2, 5], [0, 0]]),
        (torch.eye(4)[:, :2].bool(), "multi-label", [[1, 0], [0, 1], [0, 0], [0, 0]], None),
        (torch.tensor([0.5, 1, 2, 3]), "none", None, None),
    ],
)
@pytest.mark.filterwarnings("ignore:Left out:UserWarning")
def test_y_is_labels_or_targets(
    y: torch.Tensor, task: Any, labels: Any, targets: Any, way: str, tmp_path: Path
) -> None:
    graph = graph_of(data_object(y=y), way, tmp_path, task=task)
    assert (None if graph.labels is None else graph.labels.tolist()) == labels
    assert (None if graph.targets is None else graph.targets.tolist()) == targets
    assert graph.targets is None or graph.targets.dtype == torch.float32
    back = to_pyg(graph)
    assert (None if back.y is None else back.y.tolist()) == (labels if targets is None else targets)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (torch.tensor([0.0, 1, 2, 1]), {}, r"not clear: torch.float32 \[4\] of integers, which may be class ids, or targets "
         r"\(in .*y\). Pass task='regression' \(--task regression\) or task='classification'"),
        (torch.tensor([[0, 3], [1, 4], [2, 5], [0, 0]]), {}, r"torch.int64 \[4, 2\] of integers, which may be targets, or counts .*task='regression'"),
        (torch.tensor([0.5, 1, 2, 1]), {"task": "classification"}, r"torch.float32 \[4\], expected integers .*task='regression'"),
        (torch.eye(4), {"task": "classification"}, r"torch.float32 \[4, 4\], expected integers .*task='multi-label'"),
        (torch.tensor([0, 1, 2, 1]), {"task": "multi-label"}, r"torch.int64 \[4\], expected 0 and 1"),
        (torch.tensor([0, 1, 2, 1]), {"task": "graph"}, "unknown task: 'graph', expected one of auto, classification"),
        (torch.tensor([[0, 1], [1, float("nan")]] * 2), {}, r"0 and 1 .*, and no NaN .*Write 0 for an unknown label"),
    ],
)  # fmt: skip
def test_a_y_that_does_not_tell_its_task_is_refused(
    y: torch.Tensor, options: Any, message: str, way: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        graph_of(data_object(y=y), way, tmp_path, **options)
    with pytest.raises(InputError, match="targets have no classes: num_classes = 3"):
        from_pyg(data_object(y=torch.tensor([0.5, 1, 2, 1])), num_classes=3)


@pytest.mark.parametrize(
    ("ys", "task", "labels", "targets"),
    [
        (([1], [0], [1]), "auto", [1, 0, 1], None),
        (([[0.5, 2.0]], [[1.0, 1.5]], [[0.0, 0.0]]), "auto", None, [[0.5, 2.0], [1.0, 1.5], [0.0, 0.0]]),
        (([1.0], [2.0], [3.0]), "regression", None, [1.0, 2.0, 3.0]),
    ],
)
def test_y_of_a_batch_is_of_its_graphs(ys: Any, task: Any, labels: Any, targets: Any) -> None:
    from torch_geometric.data import Batch

    graph = from_pyg(Batch.from_data_list([data_object(y=torch.tensor(y)) for y in ys]), task=task)
    assert (graph.labels, graph.targets, graph.num_graphs) == (None, None, 3)
    assert (None if graph.graph_labels is None else graph.graph_labels.tolist()) == labels
    assert (None if graph.graph_targets is None else graph.graph_targets.tolist()) == targets
    assert graph.num_graph_classes == (2 if labels else 0)
    assert to_pyg(graph).y.tolist() == (labels or targets)
    both = replace(graph, labels=torch.zeros(12, dtype=torch.int64), num_classes=1)
    with pytest.raises(InputError, match=r"a PyG object has one y: labels of 1 classes and .*(graphs|per graph)"):
        to_pyg(both)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"edge_index": None}, r"there are no edges: edge_index is missing, expected integers .*there are 'x', 'y'"),
        ({"edge_index": torch.tensor([[0, 9, 1, 2], [1, 1, 2, 3]])}, r"id out of range: 9|\d+ rows, 10 vertices|wrong number of rows"),
        ({"edge_index": [[0, 1], [1, 0]]}, r"an attribute is no tensor: a list \(in .*edge_index\)"),
        ({"edge_type": torch.tensor([0.5, 1, 0, 1])}, r"wrong form: (torch.)?float32 \[4\], expected integers \[(E|num_edges)\]"),
        ({"edge_weight": torch.ones(3)}, r"edge(s and edge)? data .*(differ in number|3 rows)|wrong number of rows"),
        ({"y": [0, 1, 2, 0]}, r"an attribute is no tensor: a list \(in .*y\)\. Convert it: torch.as_tensor\(y\)"),
        ({"val_mask": torch.ones(4, 10, dtype=torch.bool)}, r"there are several splits: 10 columns, and none is chosen .*val_mask\)\. Choose a column from 0 to 9: split="),
        ({"train_mask": torch.ones(4)}, r"torch\.float32 \[4\], expected torch\.bool \[num_vertices\].*Convert .* \.bool\(\)\."),
        ({"train_mask": torch.tensor([0, 3])}, r"torch\.int64 \[2\].*mask = torch\.zeros\(4, dtype=torch\.bool\); mask\[ids\] = True\."),
        ({"y": torch.tensor(1)}, r"no label for each vertex, nor for each graph: y \[\], but there are 4 vertices.*--task none"),
        ({"y": torch.tensor([0.5, float("nan"), 2, 3])}, r"target is not finite: nan"),
    ],
)  # fmt: skip
def test_bad_objects_are_refused(fields: dict[str, Any], message: str, way: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        graph_of(data_object(**fields), way, tmp_path)


@pytest.mark.parametrize(
    "data", [{"edge_index": torch.zeros(2, 1).long()}, SimpleNamespace(edge_index=torch.zeros(2, 1).long())]
)
def test_what_is_no_data_object_is_refused_with_the_way_without_pyg(data: Any) -> None:
    with pytest.raises(
        InputError, match=rf"a {type(data).__name__}, expected a Data object of PyG .*Topology\.from_edge_index"
    ):
        from_pyg(data)


def test_heterogeneous_data_is_refused_with_the_remedy() -> None:
    from torch_geometric.data import HeteroData

    with pytest.raises(InputError, match=r"vertices of several kinds.*to_homogeneous"):
        from_pyg(HeteroData())


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = from_pyg(data_object())
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'sagann\[pyg\]'"):
        to_pyg(graph)

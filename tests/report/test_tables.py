from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from sagann.graph import Graph, Topology, rmat_graph
from sagann.report.tables import dataset_table, metrics_table


def test_a_row_per_split_and_a_column_per_metric() -> None:
    metrics = {"train": {"loss": 0.5, "accuracy": 1.0}, "test": {"accuracy": 0.75, "roc_auc": 0.9}, "val": {}}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(metrics_table(metrics, title="Metrics"))
    rows = [[cell.strip() for cell in line.strip("│┃ ").split("│")] for line in capture.get().splitlines()]
    assert ["train", "0.5000", "1.0000", "-"] in rows
    assert ["test", "-", "0.7500", "0.9000"] in rows
    assert ["val", "-", "-", "-"] in rows
    assert "macro_f1" not in capture.get()


def described(graph: Graph, path: Path = Path("nowhere")) -> dict[str, str]:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(dataset_table(graph, path=path))
    rows = [line.strip("│").split("│") for line in capture.get().splitlines() if line.startswith("│")]
    return {what.strip(): value.strip() for what, value in rows}


def test_a_labelled_graph(tmp_path: Path) -> None:
    topology = Topology.from_coo(
        src=torch.tensor([0, 1, 2, 2]),
        dst=torch.tensor([1, 1, 1, 0]),
        num_src=4,
        edge_data={"type": torch.tensor([0, 1, 2, 0]), "weight": torch.ones(4)},
    )
    graph = Graph(
        topology=topology,
        features=torch.eye(4, 2),
        labels=torch.tensor([0, 1, 1, -1]),
        num_classes=2,
        class_names=("cat", "dog"),
        splits={"train": torch.tensor([True, True, False, False])},
        num_edge_types=3,
        graph_ptr=torch.tensor([0, 3, 4]),
        graph_labels=torch.tensor([0, 1]),
        num_graph_classes=2,
        graph_splits={"train": torch.tensor([True, False]), "val": torch.tensor([False, True])},
        graph_names=("big", "small"),
    )
    (tmp_path / "file").write_bytes(bytes(2048))
    rows = described(graph, tmp_path)
    assert rows == {
        "vertices": "4",
        "edges": "4 directed",
        "in-degrees": "mean 1.00, median 0, largest 3, 2 vertices without in-edges",
        "edge data": "type (int64, 3 types), weight (float32)",
        "features": "2, dense float32",
        "classes": "2 (cat: 1, dog: 2)",
        "labelled": "3 of 4 vertices",
        "splits": "train 2",
        "graphs": "2 (vertices big: 3, small: 1)",
        "of graphs": "labels of 2 classes of graphs",
        "splits of graphs": "train 1, val 1",
        "on disk": "2.0 KiB",
    }


def test_an_empty_graph() -> None:
    topology = Topology(indptr=torch.zeros(1, dtype=torch.int64), indices=torch.zeros(0).int(), num_src=0)
    rows = described(Graph(topology=topology))
    assert rows["vertices"] == "0"
    assert rows["in-degrees"] == "none"
    assert rows["features"] == "none"
    assert rows["classes"] == "no labels"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_features_and_many_classes() -> None:
    graph = rmat_graph(50, 100, num_classes=40, seed=0)
    rows = described(replace(graph, features=torch.eye(50).to_sparse_csr()))
    assert rows["features"] == "50, sparse float32, 50 non-zeros (2.00%)"
    assert rows["classes"].startswith("40 (0: ")
    assert rows["classes"].endswith(", ...)")


def test_several_labels_per_vertex() -> None:
    graph = rmat_graph(3, 5, seed=0)
    labels = torch.tensor([[1, 0], [1, 1], [1, 0]], dtype=torch.uint8)
    rows = described(replace(graph, labels=labels, num_classes=2))
    assert rows["classes"] == "2, several per vertex (0: 3, 1: 1)"

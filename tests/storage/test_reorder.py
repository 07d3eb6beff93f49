"""Datasets with their vertices in another order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sagann.errors import DatasetError, InputError
from sagann.graph import relabel
from sagann.graph.rows import csr_tensor, offsets_of
from sagann.storage import check_dataset, open_graph, save_graph
from sagann.storage.manifest import read_manifest
from sagann.storage.reorder import save_reordered
from tests.graphs import labelled_graph
from tests.storage.conftest import assert_same_graph


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("at_once", [1, 1 << 25])
def test_it_is_the_relabelled_graph(
    sparse: bool, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagann.storage.reorder._AT_ONCE_BYTES", at_once)
    graph = labelled_graph()
    graph = replace(graph, targets=torch.randn(graph.num_vertices, 2))
    data = {"weight": torch.rand(graph.num_edges), "form": torch.rand(graph.num_edges, 2)}
    graph = graph.with_topology(graph.topology.with_edge_data(**data))
    if sparse:
        has_entry = graph.features > 0
        columns = has_entry.nonzero()[:, 1].int()
        offsets = offsets_of(has_entry.sum(1)).int()
        graph = replace(graph, features=csr_tensor(offsets, columns, graph.features[has_entry], num_columns=8))
    save_graph(graph, tmp_path / "given")
    order = torch.randperm(graph.num_vertices, generator=torch.Generator().manual_seed(0))
    save_reordered(open_graph(tmp_path / "given"), order, tmp_path / "found")
    check_dataset(tmp_path / "found")
    assert_same_graph(open_graph(tmp_path / "found"), relabel(graph, order))


def test_answers_of_graphs_follow_their_graphs(tmp_path: Path) -> None:
    graph = replace(
        labelled_graph(6, 0),
        class_names=("x", "y", "z"),
        graph_ptr=torch.tensor([0, 2, 3, 6]),
        graph_names=("a", "b", "c"),
        graph_labels=torch.tensor([2, 0, 1]),
        num_graph_classes=3,
        graph_targets=torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        graph_splits={"train": torch.tensor([True, False, False])},
    )
    order = torch.tensor([5, 3, 4, 0, 1, 2])
    save_graph(graph, tmp_path / "given")
    given = tmp_path / "given"
    save_reordered(open_graph(given), order, tmp_path / "found", manifest=read_manifest(given))
    check_dataset(tmp_path / "found")
    found = open_graph(tmp_path / "found")
    assert_same_graph(found, relabel(graph, order))
    assert found.graph_names == ("c", "a", "b")
    assert found.graph_splits["train"].tolist() == [False, True, False]


def test_what_is_no_order_leaves_nothing(tmp_path: Path) -> None:
    graph = labelled_graph()
    n = graph.num_vertices
    for order in (torch.arange(n - 1), torch.zeros(n, dtype=torch.int64), torch.arange(n, dtype=torch.int32)):
        with pytest.raises(InputError):
            save_reordered(graph, order, tmp_path / "found")
    save_reordered(graph, torch.arange(n), tmp_path / "found")
    with pytest.raises(DatasetError, match="a dataset stands there already"):
        save_reordered(graph, torch.arange(n), tmp_path / "found")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found"]

"""Dataset folders: what is saved is what opens, and what is not whole does not open."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sagann.errors import DatasetError, InputError
from sagann.graph import Graph, Topology
from sagann.storage import check_dataset, load_graph, open_graph, save_graph
from tests.storage.conftest import assert_same_graph, make_graph


def of_graphs(**answers: Any) -> Graph:
    """A graph with no answers but these, of the graphs in it."""
    split = {"val": torch.tensor([True, False])}
    none = {"graph_labels": None, "num_graph_classes": 0, "graph_splits": split}
    return replace(make_graph(labels="none"), **{**none, **answers})


def without_edges(num_vertices: int) -> Graph:
    none = torch.empty(0, dtype=torch.int64)
    return Graph(topology=Topology.from_coo(src=none, dst=none, num_src=num_vertices))


SETS = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.uint8)
GRAPHS: dict[str, Callable[[], Graph]] = {
    **{
        f"{features} {labels} {dtype}": partial(make_graph, features=features, labels=labels, dtype=dtype)
        for features in ("dense", "csr", "none")
        for labels in ("single", "multi", "none")
        for dtype in (torch.float32, torch.bfloat16)
    },
    "targets beside labels": lambda: replace(make_graph(), targets=torch.randn(7)),
    "targets alone": lambda: replace(make_graph(labels="none"), targets=torch.randn(7, 3)),
    "targets of graphs": lambda: of_graphs(graph_targets=torch.randn(2)),
    "labels of graphs": lambda: of_graphs(graph_labels=torch.tensor([-1, 4]), graph_targets=torch.randn(2, 3)),
    "several labels of graphs": lambda: of_graphs(graph_labels=SETS, num_graph_classes=5),
    "no edges": lambda: without_edges(3),
    "no vertices": lambda: without_edges(0),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_saved_graph_opens_equal(tmp_path: Path, name: str) -> None:
    graph = GRAPHS[name]()
    save_graph(graph, tmp_path / "g")
    assert_same_graph(open_graph(tmp_path / "g"), graph)
    check_dataset(tmp_path / "g")


def test_arrays_are_plain_npy_files(tmp_path: Path) -> None:
    graph = make_graph()
    save_graph(graph, tmp_path / "g")
    assert np.array_equal(np.load(tmp_path / "g" / "features.npy"), graph.features.numpy())
    assert np.array_equal(np.load(tmp_path / "g" / "indices.npy"), graph.topology.indices.numpy())


def test_existing_dataset_is_kept_unless_overwriting_was_asked_for(tmp_path: Path) -> None:
    first, second = make_graph(), make_graph(features="none")
    save_graph(first, tmp_path / "g")
    with pytest.raises(DatasetError, match=r"a dataset stands there already.*--overwrite"):
        save_graph(second, tmp_path / "g")
    assert_same_graph(open_graph(tmp_path / "g"), first)
    save_graph(second, tmp_path / "g", overwrite=True)
    assert_same_graph(open_graph(tmp_path / "g"), second)
    assert [entry.name for entry in tmp_path.iterdir()] == ["g"]


def test_a_dataset_can_be_replaced_by_what_was_opened_from_it(tmp_path: Path) -> None:
    save_graph(make_graph(), tmp_path / "g")
    save_graph(open_graph(tmp_path / "g"), tmp_path / "g", overwrite=True)
    assert_same_graph(open_graph(tmp_path / "g"), make_graph())


@pytest.mark.parametrize("name", ["", "chapter1.txt", "manifest.json"])
def test_what_is_not_a_dataset_is_never_replaced(tmp_path: Path, name: str) -> None:
    target = tmp_path / "thesis"
    file = target / name if name else target
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"name": "a site", "icons": []}')
    with pytest.raises(DatasetError, match=r"not a dataset of sagann.*Choose another name"):
        save_graph(make_graph(), target, overwrite=True)
    assert file.exists()


def test_missing_parent_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"folder to write into does not exist: .*nowhere"):
        save_graph(make_graph(), tmp_path / "nowhere" / "g")


def test_graph_that_the_format_cannot_hold_is_refused_before_anything_stands_there(tmp_path: Path) -> None:
    graph = make_graph()
    with pytest.raises(InputError, match=r"array cannot be stored: torch.complex64.*in edge_wave"):
        save_graph(graph.with_topology(graph.topology.with_edge_data(wave=torch.zeros(9) * 1j)), tmp_path / "g")
    with pytest.raises(InputError, match=r"name of edge data cannot be stored: '\.\./up'"):
        save_graph(graph.with_topology(graph.topology.with_edge_data(**{"../up": torch.zeros(9)})), tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_and_foreign_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"dataset not found: there is no such folder \(in .*absent\)"):
        open_graph(tmp_path / "absent")
    with pytest.raises(DatasetError, match=r"not a dataset of sagann: manifest.json: No such file"):
        open_graph(tmp_path)


def test_truncated_and_missing_arrays_are_refused(tmp_path: Path) -> None:
    save_graph(make_graph(), tmp_path / "g")
    path = tmp_path / "g" / "features.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DatasetError, match=r"not the one that was written: 239 bytes, expected 240 .*features.npy"):
        open_graph(tmp_path / "g")
    path.unlink()
    with pytest.raises(DatasetError, match=r"array file cannot be read: No such file.*features.npy"):
        open_graph(tmp_path / "g")


def test_values_are_checked_even_when_the_checksums_agree(tmp_path: Path) -> None:
    graph = make_graph()
    graph.features[3, 1] = float("nan")
    save_graph(graph, tmp_path / "g")
    with pytest.raises(InputError, match=r"(?i)nan"):
        check_dataset(tmp_path / "g")


def test_edited_manifest_is_refused(tmp_path: Path) -> None:
    save_graph(make_graph(), tmp_path / "g")
    file = tmp_path / "g" / "manifest.json"
    body = json.loads(file.read_text())
    body["num_classes"] = 4
    file.write_text(json.dumps(body))
    with pytest.raises(DatasetError, match=r"manifest cannot be used: its checksum does not agree"):
        open_graph(tmp_path / "g")
    file.write_text(json.dumps({**body, "version": 99}))
    with pytest.raises(
        DatasetError, match=r"another version of the format: version 99, this sagann reads version 2"
    ):
        open_graph(tmp_path / "g")


def test_unknown_name_lists_what_is_accepted() -> None:
    with pytest.raises(DatasetError, match=r"graph not found.*'demoo'.*an \.npz file, or one of: demo"):
        load_graph("demoo")


def test_other_files_are_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("0,1\n")
    with pytest.raises(DatasetError, match=r"its name ends in '\.csv'.*sagann data import"):
        load_graph(tmp_path / "edges.csv")

"""Whatever a person names opens, or the error says what could be named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sagann.errors import DatasetError
from sagann.storage import load_graph, save_graph
from tests.storage.conftest import make_graph


def test_folder_and_archive_open(tmp_path: Path) -> None:
    save_graph(make_graph(), tmp_path / "g")
    assert load_graph(tmp_path / "g").name == "small"
    np.savez(tmp_path / "p.npz", edge_index=np.array([[0, 1], [1, 2]]))
    assert load_graph(str(tmp_path / "p.npz")).num_edges == 2


def test_unknown_name_lists_what_is_accepted() -> None:
    with pytest.raises(DatasetError, match=r"graph not found.*'demoo'.*an \.npz file, or one of: demo"):
        load_graph("demoo")


def test_other_files_are_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("0,1\n")
    with pytest.raises(DatasetError, match=r"its name ends in '\.csv'.*sagann data import"):
        load_graph(tmp_path / "edges.csv")


def test_embedded_graph_opens() -> None:
    graph = load_graph("demo")
    assert graph.num_vertices > 1000
    assert graph.num_classes > 1

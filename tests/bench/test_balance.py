"""The benchmark of workers, on graphs of a few edges."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.balance.__main__ import Group, unequal
from bench.epochs.graphs import hubs_first
from sagann.storage import save_graph


@pytest.mark.distributed
@pytest.mark.thorough
def test_unequal_workers_are_measured(tmp_path: Path) -> None:
    graph = hubs_first(argparse.Namespace(vertices=300, edges=3000, features=8))
    save_graph(graph, tmp_path / "graph")
    options = argparse.Namespace(rounds=1, epochs=1, balanced_epochs=4)
    specification = {"folder": str(tmp_path / "graph"), "model": "gcn", "hidden": 8}
    with Group(specification, size=2) as group:
        group.hold_back(1, 0.5)
        assert [len(each["seconds"]) for each in group.ask(epochs=2)] == [2, 2]
        rows = unequal(group, graph, options)
    assert [row[0] for row in rows] == ["equal edges", "balanced by cost", "best static"]
    assert rows[2][3] == "1.00"
    assert abs(float(rows[0][1].rstrip("%")) - 50) < 5

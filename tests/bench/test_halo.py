"""Rows of the halo by the order of vertices, on a real graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.halo import COLUMNS, ORDERS, halo_rows, main
from sagann.graph import Graph, Topology, relabel
from sagann.partition import vertex_order
from sagann.storage import load_graph


def test_metis_leaves_workers_the_fewest_rows_to_send(data_folder: Path) -> None:
    graph = Graph(topology=load_graph(data_folder / "cora.npz").topology)
    for workers in (2, 4):
        rows = {
            by: halo_rows(relabel(graph, vertex_order(graph, by)).topology, workers)
            for by in ("random", "degree", "metis")
        }
        assert 0 < rows["metis"] < rows["random"] / 4
        assert rows["metis"] < rows["degree"] / 4


def test_a_row_counts_once_for_each_worker_that_needs_it() -> None:
    # Of two workers, the first owns 0 and 1. Edges from 2 and 3 lead there, the one from 3 twice; two edges lead to 2 and 3 each.
    src, dst = torch.tensor([[2, 3, 3, 1, 0, 2, 2, 3], [0, 0, 1, 1, 2, 2, 3, 3]])
    assert halo_rows(Topology.from_coo(src=src, dst=dst, num_src=4), 2) == 3


def test_a_row_for_every_order(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--data", "demo", "--width", "16"])
    lines = [text for text in capsys.readouterr().out.splitlines() if text.startswith("|")]
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert rows[0] == list(COLUMNS)
    assert [row[:2] for row in rows[2:]] == [["demo", order] for order in ORDERS]

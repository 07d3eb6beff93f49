"""The benchmark of parts: a row for every size, and one for every layer and graph."""

from __future__ import annotations

import sys

import pytest
import torch

from bench.partition import LAYERS, main, part_of
from tests.graphs import random_topology


def test_both_tables_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--vertices", "2000", "--parts", "3", "--edges", "6000", "--runs", "1"]
    monkeypatch.setattr(sys, "argv", ["partition", *arguments])
    main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert rows[2][:2] == ["2,000", "3"]
    assert float(rows[2][3]) > 0
    assert [row[:3] for row in rows[5:]] == [
        [layer, graph, "11"] for graph in ("the same", "another") for layer in LAYERS
    ]
    assert all(cell.endswith("%") for row in rows[5:] for cell in row[3:])


def test_a_part_has_the_in_edges_of_its_vertices() -> None:
    topology = random_topology(40, 300)
    part = part_of(topology, 10, 25)
    x = torch.rand(40, 3)
    begin, end = int(topology.indptr[10]), int(topology.indptr[25])
    others = sorted({source for source in topology.indices[begin:end].tolist() if not 10 <= source < 25})
    rows = torch.cat([x[10:25], x[others]])
    assert part.num_src == len(rows)
    assert torch.equal(rows[part.indices.long()], x[topology.indices[begin:end].long()])
    assert torch.equal(part.indptr, topology.indptr[10:26] - begin)

"""ROC's cluster by simulation: what learned parts gain, and the page."""

from __future__ import annotations

import pytest

from bench import memory_policies
from bench.epochs.graphs import Shape
from bench.roc import __main__ as roc, graphs

SMALL = Shape(vertices=2_000, edges=16_000, features=200, classes=5)


def _cells(block: str) -> list[list[str]]:
    return [text.strip("| ").split(" | ") for text in block.splitlines() if text.startswith("|")]


@pytest.mark.slow
@pytest.mark.thorough
def test_the_page_has_every_section(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(memory_policies.SHAPES, "pubmed", SMALL)
    assert SMALL.edges < graphs.MOST_EDGES
    monkeypatch.setattr(roc, "MODELS", ("gcn",))
    assert roc.main(["--datasets", "pubmed", "--partitioned", "pubmed", "--inferred", "pubmed"]) == 0
    text = capsys.readouterr().out
    tables = {tuple(rows[0]): rows for rows in map(_cells, text.split("\n\n")) if rows}
    for columns, count in (
        (roc.SCALING_COLUMNS, 1),
        (roc.RIVAL_COLUMNS, 3),
        (roc.PARTITION_COLUMNS, 6),
        (roc.LATENCY_COLUMNS, 8),
    ):
        assert len(tables[tuple(columns.split(" | "))]) == 2 + count

"""Figures of papers: NGra's and NeuGraph's ways under one budget, and ROC's cluster by simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import memory_policies
from bench.epochs.graphs import Shape
from bench.papers import neugraph
from bench.papers.neugraph import COLUMNS
from bench.roc import __main__ as roc, graphs
from tests.bench.tables import rows_of
from tests.plan.machines import ROUND

WAYS = {
    "orders": ["column", "row", "stage"],
    "visits": ["ascending", "zigzag", "strips", "twice P", "refined"],
    "rows": ["whole", "picked"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("compare", WAYS)
def test_a_row_for_every_way(compare: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    machine = tmp_path / "machine.toml"
    machine.write_text(ROUND.to_toml())
    given = [compare, "--datasets", "tiny", "--models", "gated-gcn", "--hidden", "16", "--threads", "1"]
    given += ["--simulations", "3", "--machine", str(machine), "--work", str(tmp_path / "work")]
    assert neugraph.main(given) == 0
    rows = {row["way"]: row for row in rows_of(capsys.readouterr().out, COLUMNS)}
    assert list(rows) == WAYS[compare]
    assert len({row["budget MiB"] for row in rows.values()}) == 1
    assert len({row["P"] for name, row in rows.items() if name != "twice P"}) == 1
    times = {name: float(row["times the first"]) for name, row in rows.items()}
    if compare == "orders":
        assert times["row"] > 1.2
    if compare == "visits":
        assert times["strips"] < 1
        assert int(rows["twice P"]["P"]) == 2 * int(rows["strips"]["P"])
        assert float(rows["refined"]["simulated s"]) <= float(rows["strips"]["simulated s"])
    if compare == "rows":
        assert times["picked"] <= 1
    assert list((tmp_path / "work").iterdir()) == []


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

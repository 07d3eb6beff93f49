"""The arithmetic of the report: which variant counts, ratios, and whose results differ."""

from __future__ import annotations

import pytest

from bench.contest import Record, chosen_for_alternation
from bench.epochs.report import geometric_mean, render, rows_of


def alone(contestant: str, *, seconds: float = 1.0, peak_bytes: int = 100, **changed: object) -> Record:
    record: Record = {
        "kind": "alone",
        "dataset": "graph",
        "task": "gcn",
        "contestant": contestant,
        "outcome": "ok",
        "peak_bytes": peak_bytes,
        "losses": [1.0, 0.5],
        "seconds": [seconds],
    }
    return record | changed


def together(**turns: list[float]) -> Record:
    seconds = {name.replace("_", ":"): [[turn] for turn in values] for name, values in turns.items()}
    return {"kind": "together", "dataset": "graph", "task": "gcn", "seconds": seconds}


def test_ratios_are_medians_over_rounds_and_the_better_peer_counts() -> None:
    records = [
        alone("sagann", peak_bytes=60),
        alone("sagann:lean", peak_bytes=40),
        alone("pyg:csr", peak_bytes=200),
        alone("pyg:edge", seconds=9.0, peak_bytes=90),
        alone("dgl", peak_bytes=100),
        alone("floor"),
        together(
            sagann=[1.0, 2.0, 1.0],
            sagann_lean=[2.0, 2.5, 2.5],
            pyg_csr=[3.0, 6.0, 9.0],
            dgl=[2.0, 5.0, 2.0],
            floor=[0.8, 1.6, 0.5],
        ),
    ]
    (row,) = rows_of(records)
    assert row.ratio("pyg") == 3.0
    assert row.ratio("dgl") == 2.0
    assert row.speedup == 2.0
    assert row.times_floor == pytest.approx(1 / 0.8)
    assert row.headroom == pytest.approx(2.0 / 0.8)
    # The thriftiest variant counts, though it is slow.
    assert row.least_peer == ("pyg:edge", 90)
    assert row.memory_share() == pytest.approx(60 / 90)
    assert row.memory_share("sagann:lean") == pytest.approx(40 / 90)


def test_who_was_killed_is_named_and_who_computes_something_else_is_wrong() -> None:
    records = [alone("sagann"), alone("pyg:edge", outcome="killed"), alone("dgl", seconds=3.0, losses=[1.01, 0.5])]
    (row,) = rows_of(records)
    assert row.outcomes == {"pyg": "killed"}
    assert row.speedup == 3.0
    assert row.wrong == ("dgl",)
    assert "| 1 (alone) | killed | 3 (alone) | 3.00 |" in render([row])


def test_ablation_compares_with_all_optimisations() -> None:
    rows = rows_of([alone("sagann"), alone("sagann:no-fuse", seconds=4.0, peak_bytes=300)])
    assert "| graph | gcn | 4.00 (3.00) |" in render(rows)


def test_the_best_of_a_system_and_what_comes_near_run_in_alternation() -> None:
    records = [
        alone(name, seconds=seconds)
        for name, seconds in (("sagann", 1.0), ("pyg:a", 2.0), ("pyg:b", 2.4), ("pyg:c", 3.0))
    ]
    assert chosen_for_alternation({record["contestant"]: record for record in records}) == [
        "sagann",
        "pyg:a",
        "pyg:b",
    ]


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)

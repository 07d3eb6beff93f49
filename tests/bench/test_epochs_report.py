"""The arithmetic of the report: which variant counts, ratios, means and targets."""

from __future__ import annotations

import pytest

from bench.contest import Record, chosen_for_alternation
from bench.epochs.report import geometric_mean, render, rows_of, verdicts
from bench.origin import command_line


def alone(contestant: str, *, seconds: float = 1.0, peak_bytes: int = 100, **changed: object) -> Record:
    record: Record = {
        "kind": "alone",
        "dataset": "graph",
        "task": "gcn",
        "contestant": contestant,
        "outcome": "ok",
        "rehearsal_s": 0.1,
        "loaded_bytes": 1 << 20,
        "first_s": 2.0,
        "first_peak_bytes": 2 * peak_bytes,
        "peak_bytes": peak_bytes,
        "losses": [1.0, 0.5],
        "seconds": [seconds],
        "parts": {},
        "commit": "abc",
        "processor": "a processor",
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
    reached = {verdict.target: verdict.reached for verdict in verdicts([row])}
    # The lean engine takes twice as long as the other, and that is as long as the better peer takes.
    assert list(reached.values()) == [True, True, True, None, False, False, True, True, True]


def test_who_was_killed_is_named_and_left_out_of_ratios() -> None:
    killed = {"outcome": "killed", "detail": "exit status -9"}
    records = [alone("sagann"), alone("pyg:edge", **killed), alone("dgl", seconds=3.0)]
    (row,) = rows_of(records)
    assert row.outcomes == {"pyg": "killed"}
    assert row.speedup == 3.0
    text = render([row], records, ["# Title"], verdicts([row]))
    assert "| gcn | 1 (alone) | killed | 3 (alone) | **3.00** |" in text


def test_a_contestant_that_computes_something_else_reaches_nothing() -> None:
    (row,) = rows_of([alone("sagann"), alone("dgl", seconds=5.0, losses=[1.01, 0.5])])
    assert row.wrong == ("dgl",)
    assert len(verdicts([row], of_defaults=True)) < len(verdicts([row]))
    sound, *others = verdicts([row])
    assert sound.reached is False
    assert sound.figures == "gcn on graph: dgl differ"
    assert {verdict.reached for verdict in others} == {None}


def test_where_sagann_does_not_run_is_a_fault() -> None:
    (row,) = rows_of([alone("sagann", outcome="killed", detail=""), alone("dgl")])
    sound = verdicts([row])[0]
    assert (sound.reached, sound.figures) == (False, "gcn on graph: sagann killed")


def test_where_no_peer_runs_there_is_no_ratio() -> None:
    (row,) = rows_of([alone("sagann"), alone("dgl", outcome="killed", detail="")])
    assert verdicts([row])[0].figures == "1 of 1; no peer ran, so no ratio: gcn on graph"


def test_a_target_missed_says_where() -> None:
    (row,) = rows_of([alone("sagann"), alone("dgl", seconds=0.5)])
    never = verdicts([row])[1]
    assert never.reached is False
    assert never.figures == "0 of 1; worst 0.50 (gcn on graph); missed: gcn on graph 0.50"


def test_ablation_compares_with_all_optimisations() -> None:
    records = [alone("sagann"), alone("sagann:no-fuse", seconds=4.0, peak_bytes=300)]
    rows = rows_of(records)
    assert "| graph | gcn | 4.00 (3.00) |" in render(rows, records, [], verdicts(rows))


def test_the_best_of_a_system_and_what_is_near_it_alternate() -> None:
    records = {
        "sagann": alone("sagann", seconds=9.0),
        "sagann:naive": alone("sagann:naive", seconds=99.0),
        "pyg:a": alone("pyg:a", seconds=1.2),
        "pyg:b": alone("pyg:b", seconds=1.0),
        "pyg:c": alone("pyg:c", seconds=1.1),
        "pyg:d": alone("pyg:d", outcome="killed"),
        "dgl": alone("dgl", seconds=5.0),
        "dgl:weights": alone("dgl:weights", seconds=7.0),
    }
    assert chosen_for_alternation(records) == ["sagann", "sagann:naive", "pyg:b", "pyg:c", "dgl"]


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_the_command_shown_names_no_place_of_this_machine() -> None:
    options = ["--dgl", "/a/bin/python", "--rounds", "3", "--results=/a/epochs.jsonl", "--out", "/a/epochs.md"]
    assert command_line("bench.epochs", options) == "python -m bench.epochs --dgl $DGL_PYTHON --rounds 3"

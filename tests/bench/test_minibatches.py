"""The benchmark of sampled epochs: a row for each loader that runs here, and what each stage takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.minibatches.__main__ import rows_of, stages_of, task_named
from bench.minibatches.on_disk import Turn, rows_of as disk_rows_of, tiers_of
from bench.size.limit import Ended
from bench.workers import ROOT

TINY = ["--vertices", "3000", "--edges", "40e3", "--features", "8", "--hidden", "16", "--seeds", "300", "--batch-size", "100", "--rounds", "2", "--threads", "1"]  # fmt: skip


def test_ratios_are_those_of_the_pipeline() -> None:
    def turn(seconds: float, **stages: float) -> dict[str, object]:
        return {"seconds": seconds, "step_s": 2.0, "edges": 1000, "loss": 1.5, "stages": stages}

    turns = {
        "sagann:ahead": [turn(2.5, sample=3.0, load=0.5)] * 3,
        "sagann:calling": [turn(4.0, sample=1.5, load=0.5)] * 3,
        "other": [turn(5.0)] * 3,
    }
    assert rows_of(turns)[2:] == [
        "| sagann:ahead | 2.50 | 1,000 | 1.500 | 1.00 |",
        "| sagann:calling | 4.00 | 1,000 | 1.500 | 1.60 |",
        "| other | 5.00 | 1,000 | 1.500 | 2.00 |",
    ]
    assert stages_of(turns)[::2] == [
        "| sample | load | train | epoch | epoch / slowest stage |",
        "| 1.50 | 0.50 | 2.00 | 2.50 | 1.25 |",
    ]
    assert stages_of({"other": turns["other"]}) == []


@pytest.mark.thorough
def test_a_tiny_graph_is_measured() -> None:
    assert task_named("sage:5,3").fanouts == (5, 3)
    command = [sys.executable, "-m", "bench.minibatches", *TINY, "--tasks", "gat:4,4,2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| sagann")]
    assert sorted(row[0] for row in rows) == ["sagann:ahead", "sagann:calling"]
    assert rows[0][4] == "1.00"
    # Both train the same batches.
    assert rows[0][2:4] == rows[1][2:4]


@pytest.mark.slow
def test_a_tiny_epoch_is_foretold_and_measured() -> None:
    options = ["--graphs", "tiny", "--models", "gat", "--batch-size", "16", "--hidden", "8", "--rounds", "1", "--epochs", "2"]  # fmt: skip
    command = [sys.executable, "-m", "bench.minibatches.forecast", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("| tiny | gat | 8 |")


def _turn(told: dict[str, object], *, kills: int = 0) -> Turn:
    ended = Ended(status=0, output="", errors="", seconds=9.0, own_bytes=2**30, kills=kills, hits=0)
    return Turn(ended=ended, told=told)


def test_a_batch_from_disk_is_compared_and_who_is_killed_has_no_figures() -> None:
    def epoch(seconds: float, forecast_s: float) -> dict[str, float]:
        cold = {"cold_bytes": 2**20, "forecast_cold_bytes": 1.5 * 2**20}
        return {"seconds": seconds, "forecast_s": forecast_s, "bytes": 2**22, "forecast_bytes": 2**22} | cold

    work = {"batches": 4, "edges": 4000, "rows": 800, "ready_s": 7.0}
    sagann = work | {
        "seconds": 2.0,
        "stages": {"sample": 0.5, "train": 1.5},
        "tiers": {"hot": 3 * 2**20, "cold": 2**20},
        "reads": 1000,
        "read_bytes": 2**21,
        "hit_rate": 0.75,
        "preparing": {"open": 3.0, "score": 4.2},
        "epochs": [epoch(2.0, 2.2), epoch(2.5, 2.25), epoch(2.0, 3.0)],
    }
    turns = {
        "sagann": [_turn(sagann)],
        "pyg": [_turn(work | {"batches": 1, "seconds": 5.0})],
        "dgl": [_turn({}, kills=1)],
    }
    assert disk_rows_of(turns)[2:] == [
        "| sagann | ok | 4 | 0.50 | 1.0 | 1,000 | 200 | 7 | 1024 |",
        "| pyg | ok | 1 | 5.00 | 10.0 | 4,000 | 800 | 7 | 1024 |",
        "| dgl | killed | - | - | - | - | - | - | 1024 |",
    ]
    told = "\n".join(tiers_of(turns))
    assert "3 MiB hot, 1 MiB cold; 1,000 reads of 2 MiB" in told
    assert "Before the first epoch: open 3 s, score 4 s." in told
    assert told.splitlines()[-5:] == [
        "| 1 | 2.2 | 2.0 | 1.10 | 1.000 | 1.500 |",
        "| 2 | 2.2 | 2.5 | 0.90 | 1.000 | 1.500 |",
        "| 3 | 3.0 | 2.0 | 1.50 | 1.000 | 1.500 |",
        "",
        "Median of forecast / measured: 1.10.",
    ]
    assert tiers_of(turns | {"sagann": [_turn({}, kills=1)]}) == []

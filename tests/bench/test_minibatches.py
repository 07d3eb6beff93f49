"""The benchmark of sampled epochs: a row for each loader that runs here, and what each stage takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.minibatches.__main__ import rows_of, stages_of, task_named
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


@pytest.mark.slow
def test_a_tiny_graph_is_measured() -> None:
    assert task_named("sage:5,3").fanouts == (5, 3)
    command = [sys.executable, "-m", "bench.minibatches", *TINY, "--tasks", "gat:4,4,2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| sagann")]
    assert [row[0] for row in rows] == ["sagann:ahead", "sagann:calling"]
    # Both train the same batches.
    assert rows[0][2:4] == rows[1][2:4]

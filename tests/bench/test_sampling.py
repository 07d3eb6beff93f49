"""The benchmark of samplers: a row for each that runs here, and edges that were counted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.sampling.__main__ import rows_of
from bench.workers import ROOT

TINY = ["--vertices", "3000", "--edges", "40e3", "--seeds", "500", "--batch-size", "100", "--batches", "2", "--rounds", "2"]  # fmt: skip


def test_rates_are_by_seconds_and_threads() -> None:
    turns = {
        "sagann:plain": [{"edges": 8e6, "seconds": 2.0, "core_s": 4.0}] * 3,
        "other": [{"edges": 2e6, "seconds": 1.0, "core_s": 1.0}] * 3,
    }
    assert rows_of(turns, 2) == [
        ["sagann:plain", "8,000,000", "2.0", "2.0", "1.00"],
        ["other", "2,000,000", "1.0", "2.0", "2.00"],
    ]


@pytest.mark.thorough
def test_a_tiny_graph_is_measured() -> None:
    command = [sys.executable, "-m", "bench.sampling", *TINY, "--threads", "2", "--fanouts", "5,3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| sagann")]
    assert [row[0] for row in rows] == ["sagann:plain", "sagann:prepared"]
    assert all(int(row[1].replace(",", "")) > 200 for row in rows)

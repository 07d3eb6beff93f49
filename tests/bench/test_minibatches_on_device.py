"""The benchmark of sampled epochs on a device: what it measures, what it says, and that a failure leaves the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.minibatches import __main__ as script
from bench.workers import ROOT

TINY = "--vertices 3000 --edges 40e3 --features 8 --hidden 16 --seeds 300 --batch-size 100 --rounds 2 --threads 1 --device cpu"


@pytest.mark.thorough
@pytest.mark.peers
def test_a_tiny_graph_is_measured_and_what_a_processor_cannot_is_said(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    asked = ["--hot", "10%", "--sampling-threads", "1", "--workers", "1", "--tasks", "gat:4,3", "--out", str(page)]
    command = [sys.executable, "-m", "bench.minibatches", *TINY.split(), *asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # There is no CUDA device.
    assert done.returncode == 1, done.stderr
    said = page.read_text()
    assert "| sagann:copied | " in said
    assert "- `sagann:hot 10%` did not run: rows and edges lie on a CUDA device alone.\n" in said
    assert "| pyg:1 workers | " in said or "neither is installed" in said
    assert "the processor, " in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_tiny_graph_is_measured_on_a_device(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    asked = f"--workers 1 --out {page} --device cuda --hot 0% 10% --sampling-threads 1 2 --tasks sage:5,3 gat:4,3".split()
    assert script.main([*TINY.split(), *asked]) == 0
    said = page.read_text()
    for name in ("copied", "hot 0%", "hot 10%", "copied, 2 threads", "hot 0%, 2 threads", "hot 10%, 2 threads"):
        assert said.count(f"| sagann:{name} | ") == (2 if "threads" in name else 4)
    cells = [line.strip("| ").split(" | ") for line in said.splitlines() if line.startswith("| sagann")]
    rows = [row for row in cells if len(row) == 7]
    for task in (rows[:6], rows[6:]):
        assert len(task) == 6
        assert len({row[4] for row in task}) == 1
        assert all(float(row[5]) == pytest.approx(float(task[0][5]), abs=0.002) for row in task)

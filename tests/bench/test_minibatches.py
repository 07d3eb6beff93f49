"""The benchmark of sampled epochs: a row for each loader that runs here, and what each stage takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.contest import Contestant, take_turns
from bench.workers import ROOT

TINY = "--vertices 3000 --edges 40e3 --features 8 --hidden 16 --seeds 300 --batch-size 100 --rounds 2 --threads 1"


@pytest.mark.thorough
def test_a_tiny_graph_is_measured() -> None:
    command = [sys.executable, "-m", "bench.minibatches", *TINY.split(), "--tasks", "gat:4,4,2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| sagann")]
    assert sorted(row[0] for row in rows) == ["sagann:ahead", "sagann:calling"]
    assert rows[0][4] == "1.00"
    # Both train the same batches.
    assert rows[0][2:4] == rows[1][2:4]


@pytest.mark.slow
def test_a_tiny_epoch_is_foretold_and_measured() -> None:
    options = "--graphs tiny --models gat --batch-size 16 --hidden 8 --rounds 1 --epochs 2"
    command = [sys.executable, "-m", "bench.minibatches.forecast", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("| tiny | gat | 8 |")


def test_turns_go_on_without_a_peer_that_hangs() -> None:
    say = "import os, sys; say = lambda it: os.write(int(sys.argv[2]), it.encode()); say('{\"ready\": 0}\\n')\n"
    programs = {"sagann": f"{say}for line in sys.stdin: say(line)", "dgl": "import time; time.sleep(60)"}
    contestants = [Contestant(name=name, command=(sys.executable, "-c", text)) for name, text in programs.items()]
    turns = take_turns(contestants, lambda _: {}, first={"epoch": 0}, request={"epoch": 1}, rounds=2, timeout_s=3)
    assert turns == {"sagann": [{"epoch": 1}] * 2}

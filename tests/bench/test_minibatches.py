"""The benchmark of sampled epochs: a row for each loader that runs here, and what each stage takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.contest import take_turns
from bench.workers import ROOT

TINY = "--vertices 3000 --edges 40e3 --features 8 --hidden 16 --seeds 300 --batch-size 100 --rounds 2 --threads 1"


@pytest.mark.thorough
@pytest.mark.peers
def test_a_tiny_graph_is_measured_and_what_a_processor_cannot_is_said() -> None:
    command = [sys.executable, "-m", "bench.minibatches", *TINY.split(), "--tasks", "gat:4,4,2", "--hot", "10%"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # There is no CUDA device, and sagann's hot rows lie on one.
    assert done.returncode == 1, done.stderr
    assert "- `sagann:hot 10%` did not run: rows and edges lie on a CUDA device alone.\n" in done.stdout
    assert "the processor, " in done.stdout
    assert "| pyg:loader | " in done.stdout or "neither is installed" in done.stdout
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| sagann")]
    *epochs, alone = rows
    assert sorted(row[0] for row in epochs) == ["sagann:ahead", "sagann:calling"]
    assert alone[0] == "sagann:ahead"
    assert epochs[0][6] == "1.00"
    # Both train the same batches.
    assert epochs[0][4:6] == epochs[1][4:6]


def test_turns_go_on_without_a_peer_that_hangs() -> None:
    say = "import os, sys; say = lambda it: os.write(int(sys.argv[2]), it.encode()); say('{\"ready\": 0}\\n')\n"
    programs = {"sagann": f"{say}for line in sys.stdin: say(line)", "dgl": "import time; time.sleep(60)"}
    commands = {name: (sys.executable, "-c", text) for name, text in programs.items()}
    turns = take_turns(
        commands, lambda _: {}, first={"epoch": 0}, request=lambda *_: {"epoch": 1}, rounds=2, timeout_s=3
    )
    assert turns.answers == {"sagann": [{"epoch": 1}] * 2}
    assert {name: end.outcome for name, end in turns.failures.items()} == {"dgl": "too slow"}

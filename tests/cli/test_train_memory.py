"""Features larger than memory: mini-batches train under a hard limit, bitwise as without one and without tiers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sagann.graph import random_split
from sagann.storage import save_graph
from tests.cli.conftest import Invoke
from tests.runtime.memory_driver import generated

MIB = 1 << 20
BUDGET_MIB = 128
# The budget, and what every process takes besides.
LIMIT_BYTES = (BUDGET_MIB + 600) * MIB
NUM_VERTICES, WIDTH = 105_000, 2048


def epochs_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.thorough
def test_a_tiered_run_survives_a_hard_limit_smaller_than_its_features(
    limited: Callable[[int], Sequence[str]], tmp_path: Path, invoke: Invoke
) -> None:
    start = limited(LIMIT_BYTES)
    # Rows are wide, so that features larger than the limit are those of few vertices.
    graph = generated(NUM_VERTICES, 500_000, num_features=1)
    features = torch.empty(NUM_VERTICES, WIDTH).uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    assert features.nbytes > LIMIT_BYTES
    graph = random_split(replace(graph, features=features), train=0.015, val=0.01, seed=0)
    save_graph(graph, tmp_path / "data")
    del graph, features

    model = ("--model", "sage", "--hidden", 16, "--sample", "10,5", "--batch-size", 64)
    quick = ("--epochs", 2, "--eval-every", 2, "--weights", "last", "--no-verify", "--quiet")
    options = ("train", "--data", tmp_path / "data", *model, *quick, "--memory", f"{BUDGET_MIB}MiB", "--out")
    cold, hot = tmp_path / "cold", tmp_path / "hot"
    assert invoke(*options, cold, "--hot", "0%", "--cache", "static").code == 0
    done = subprocess.run(
        [*start, sys.executable, "-m", "sagann", *map(str, options), hot],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (cold / "model.safetensors").read_bytes() == (hot / "model.safetensors").read_bytes()
    for line, without in zip(epochs_of(hot), epochs_of(cold), strict=True):
        assert line["loss"] == without["loss"]
        assert line["hot_rows"] + line["cold_rows"] == without["cold_rows"]
        assert line["cold_bytes"] == WIDTH * 4 * line["cold_rows"]
        # Half of the budget has room for 7% of the rows, and the vertices of this graph are alike.
        assert line["hot_rows"] > 0.05 * without["cold_rows"]

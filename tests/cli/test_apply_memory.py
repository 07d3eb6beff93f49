"""A model that memory would not hold is used within a budget, as it was trained: in processes under a hard limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from sagann.graph import random_split
from sagann.storage import save_graph
from tests.cli.conftest import Invoke
from tests.runtime.memory_driver import generated

MIB = 1 << 20
NUM_VERTICES = 125_000


@pytest.mark.thorough
def test_evaluation_predictions_and_embeddings_survive_a_hard_limit(
    limited: Callable[[int], Sequence[str]], tmp_path: Path, invoke: Invoke
) -> None:
    start = limited((60 + 600) * MIB)
    # It is trained on a small graph of the same kind: training under a limit has tests of its own.
    for name, num_vertices in (("small", 1000), ("large", NUM_VERTICES)):
        save_graph(random_split(generated(num_vertices, 4 * num_vertices), seed=0), tmp_path / name)
    of_large = ("--data", tmp_path / "large")

    def sagann(*arguments: object) -> int:
        done = subprocess.run(
            [*start, sys.executable, "-m", "sagann", *map(str, arguments), "--quiet"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=False,
        )
        return done.returncode

    options = ("--data", tmp_path / "small", "--model", "sage", "--hidden", 512, "--epochs", 1)
    run, in_memory, out = tmp_path / "run", tmp_path / "in-memory", tmp_path / "predictions.csv"
    assert invoke("train", *options, "--memory", "60MiB", "--out", run).code == 0
    assert sagann("evaluate", "--run", run, *of_large) == 0
    assert sagann("predict", "--run", run, *of_large, "--out", out) == 0
    assert out.read_text().count("\n") == NUM_VERTICES + 1
    assert sagann("embed", "--run", run, *of_large, "--out", tmp_path / "embeddings.npy") == 0
    assert np.load(tmp_path / "embeddings.npy", mmap_mode="r").shape == (NUM_VERTICES, 512)
    # The same run, had it been trained without a budget.
    shutil.copytree(run, in_memory)
    described = json.loads((run / "run.json").read_text())
    described["train"]["memory"] = None
    (in_memory / "run.json").write_text(json.dumps(described))
    assert sagann("evaluate", "--run", in_memory, *of_large) == -9

"""Processes under a hard limit of memory: a streamed model is used, and features larger than memory are trained, as without one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sagann.graph import random_split
from sagann.storage import save_graph
from tests.cli.conftest import Invoke
from tests.cli.test_process import run
from tests.runtime.memory_driver import generated
from tests.train.runs import written_lines

MIB = 1 << 20
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
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
        code, *_ = run(*arguments, "--quiet", before=start, env=ONE_THREAD)
        return code

    options = ("--data", tmp_path / "small", "--model", "sage", "--hidden", 512, "--epochs", 1)
    folder, in_memory, out = tmp_path / "run", tmp_path / "in-memory", tmp_path / "predictions.csv"
    assert invoke("train", *options, "--memory", "60MiB", "--out", folder).code == 0
    assert sagann("evaluate", "--run", folder, *of_large) == 0
    assert sagann("predict", "--run", folder, *of_large, "--out", out) == 0
    assert out.read_text().count("\n") == NUM_VERTICES + 1
    assert sagann("embed", "--run", folder, *of_large, "--out", tmp_path / "embeddings.npy") == 0
    assert np.load(tmp_path / "embeddings.npy", mmap_mode="r").shape == (NUM_VERTICES, 512)
    # The same run, had it been trained without a budget.
    shutil.copytree(folder, in_memory)
    described = json.loads((folder / "run.json").read_text())
    described["train"]["memory"] = None
    (in_memory / "run.json").write_text(json.dumps(described))
    assert sagann("evaluate", "--run", in_memory, *of_large) == -9


BUDGET_MIB = 128
# The budget, and what every process takes besides.
LIMIT_BYTES = (BUDGET_MIB + 600) * MIB
NUM_WIDE, WIDTH = 105_000, 2048


@pytest.mark.thorough
def test_a_tiered_run_survives_a_hard_limit_smaller_than_its_features(
    limited: Callable[[int], Sequence[str]], tmp_path: Path, invoke: Invoke
) -> None:
    start = limited(LIMIT_BYTES)
    # Rows are wide, so that features larger than the limit are those of few vertices.
    graph = generated(NUM_WIDE, 500_000, num_features=1)
    features = torch.empty(NUM_WIDE, WIDTH).uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    assert features.nbytes > LIMIT_BYTES
    graph = random_split(replace(graph, features=features), train=0.015, val=0.01, seed=0)
    save_graph(graph, tmp_path / "data")
    del graph, features

    model = ("--model", "sage", "--hidden", 16, "--sample", "10,5", "--batch-size", 64)
    quick = ("--epochs", 2, "--eval-every", 2, "--weights", "last", "--no-verify", "--quiet")
    options = ("train", "--data", tmp_path / "data", *model, *quick, "--memory", f"{BUDGET_MIB}MiB", "--out")
    cold, hot = tmp_path / "cold", tmp_path / "hot"
    assert invoke(*options, cold, "--hot", "0%", "--cache", "static").code == 0
    code, _, err = run(*options, hot, before=start, env=ONE_THREAD)
    assert code == 0, err
    assert (cold / "model.safetensors").read_bytes() == (hot / "model.safetensors").read_bytes()
    for line, without in zip(written_lines(hot), written_lines(cold), strict=True):
        assert line["loss"] == without["loss"]
        assert line["hot_rows"] + line["cold_rows"] == without["cold_rows"]
        assert line["cold_bytes"] == WIDTH * 4 * line["cold_rows"]
        # Half of the budget has room for 7% of the rows, and the vertices of this graph are alike.
        assert line["hot_rows"] > 0.05 * without["cold_rows"]

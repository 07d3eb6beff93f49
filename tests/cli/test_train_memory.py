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
from tests.runtime.memory_driver import generated

MIB = 1 << 20
BUDGET_MIB = 128
# The budget, and what every process takes besides.
LIMIT_BYTES = (BUDGET_MIB + 600) * MIB


@pytest.mark.slow
@pytest.mark.tries("limit")
def test_a_tiered_run_survives_a_hard_limit_smaller_than_its_features(
    limited: Callable[[int], Sequence[str]], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    start = limited(LIMIT_BYTES)
    graph = generated(420_000, 2_000_000)
    features = torch.empty(graph.num_vertices, 512).uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    assert features.nbytes > LIMIT_BYTES
    graph = random_split(replace(graph, features=features), train=0.04, val=0.02, seed=0)
    save_graph(graph, tmp_path / "data")
    del graph, features

    def trained(name: str, *options: str, start: Sequence[str] = ()) -> list[dict[str, float]]:
        run = [
            sys.executable,
            "-m",
            "sagann",
            "train",
            "--data",
            tmp_path / "data",
            "--out",
            tmp_path / name,
            "--quiet",
        ]
        model = ["--model", "sage", "--hidden", "16", "--sample", "10,5", "--batch-size", "256"]
        quick = ["--epochs", "3", "--eval-every", "1", "--weights", "last", "--no-verify"]
        done = subprocess.run(
            [*start, *map(str, run), *model, *quick, "--memory", f"{BUDGET_MIB}MiB", *options],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    record_property("trials", 1)
    cold = trained("cold", "--hot", "0%", "--cache", "static")
    hot = trained("hot", start=start)
    assert len({(tmp_path / name / "model.safetensors").read_bytes() for name in ("cold", "hot")}) == 1
    for line, without in zip(hot, cold, strict=True):
        assert line["loss"] == without["loss"]
        assert line["hot_rows"] + line["cold_rows"] == without["cold_rows"]
        assert line["cold_bytes"] == 512 * 4 * line["cold_rows"]
        # Half of the budget has room for 7% of the rows, and the vertices of this graph are alike.
        assert line["hot_rows"] > 0.05 * without["cold_rows"]

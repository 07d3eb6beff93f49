"""A streamed epoch takes no more memory than its budget: seen from outside, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
# The heap of the C library, NumPy's work arrays, threads' stacks: not tensors.
BESIDES_BYTES = 32 * MIB


def run(model: str, budget_mib: int, spill: Path, *ways: str, start: Callable[[], None] | None = None) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.memory_driver", model, str(budget_mib), str(spill), *ways],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=start,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.returncode


@pytest.mark.slow
@pytest.mark.parametrize(("model", "budget_mib"), [("gcn", 60), ("gat", 100), ("maxpool-gcn", 100)])
def test_a_streamed_epoch_stays_within_its_budget(model: str, budget_mib: int, tmp_path: Path) -> None:
    ways = run(model, budget_mib, tmp_path / "spill", "streamed", "dense")
    found, dense = ways["streamed"], ways["dense"]
    assert found["num_intervals"] > 2
    assert found["stored_bytes"] > 0
    assert found["peak_bytes"] <= budget_mib * MIB
    assert found["above_bytes"] <= budget_mib * MIB + BESIDES_BYTES
    # It is a budget that matters: in memory the same epoch takes twice as much.
    assert found["above_bytes"] > budget_mib * MIB / 2
    assert dense["above_bytes"] > 2 * budget_mib * MIB
    assert not (tmp_path / "spill").exists()


@pytest.mark.slow
def test_a_process_survives_a_hard_limit_that_kills_it_in_memory(
    limited: Callable[[int], Callable[[], None]], tmp_path: Path
) -> None:
    start = limited((100 + 600) * MIB)
    found = run("gat", 100, tmp_path / "spill", "streamed", start=start)
    assert found["streamed"]["stored_bytes"] > 0
    assert run("maxpool-gcn", 0, tmp_path, "dense", start=start) == -9

"""A streamed epoch takes no more memory than its budget: seen from outside, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sagann.nn.zoo import MODELS

MIB = 1 << 20
# The heap of the C library, NumPy's work arrays, threads' stacks: not tensors.
BESIDES_BYTES = 32 * MIB
# Pages of files that are written, and the system's tables, which a hard limit counts as well.
OF_SYSTEM_BYTES = 32 * MIB


class Driver:
    """A process that runs epochs when it is told to (:mod:`tests.runtime.memory_driver`)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def told(self) -> dict[str, float]:
        """The next line of the process; empty where the process has ended."""
        line = self.process.stdout.readline()
        found: dict[str, float] = json.loads(line) if line else {}
        return found

    def go_on(self) -> dict[str, float]:
        """Let the process go on, and give its next line."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.told()


@contextmanager
def driver(*models: str, spill: Path, start: Sequence[str] = ()) -> Iterator[Driver]:
    process: Any = subprocess.Popen(
        [*start, sys.executable, "-m", "tests.runtime.memory_driver", str(spill), *models],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Driver(process)
        finally:
            process.kill()


def assert_promise_kept(plan: dict[str, float], epoch: dict[str, float]) -> None:
    assert plan["num_intervals"] > 2
    assert plan["stored_bytes"] > 0
    assert plan["peak_bytes"] <= plan["budget_bytes"]
    assert plan["budget_bytes"] / 2 < epoch["above_bytes"] <= plan["budget_bytes"] + BESIDES_BYTES


@pytest.mark.slow
def test_a_streamed_epoch_stays_within_a_budget_that_it_exceeds_in_memory(tmp_path: Path) -> None:
    with driver("gcn", spill=tmp_path / "spill") as process:
        plan = process.told()
        assert_promise_kept(plan, process.go_on())
        assert process.go_on()
        assert process.go_on()["above_bytes"] > plan["budget_bytes"] + BESIDES_BYTES
        assert process.go_on() == {}
        assert process.process.wait() == 0
    assert not (tmp_path / "spill").exists()


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_every_model_survives_a_hard_limit_that_kills_it_in_memory(
    limited: Callable[[int], Sequence[str]], tmp_path: Path
) -> None:
    # The model that takes most beyond its budget in memory comes last.
    models = sorted([*MODELS, "residual-gcn:8@16", "own@16"], key=lambda name: name == "gated-gcn")
    roomy_bytes = 4 << 30
    with driver(*models, spill=tmp_path / "spill", start=limited(roomy_bytes)) as process:
        told = process.told()
        for name in models:
            limit_bytes = told["budget_bytes"] + BESIDES_BYTES + OF_SYSTEM_BYTES
            limited(int(told["anonymous_bytes"] + limit_bytes))
            epoch = process.go_on()
            assert epoch, f"{name} exceeds its budget of {told['budget_bytes']} bytes by more than is allowed for"
            assert_promise_kept(told, epoch)
            limited(roomy_bytes)
            told = process.go_on()
        limited(int(told["anonymous_bytes"] + limit_bytes))
        assert process.go_on() == {}
        assert process.process.wait() == -9


def epochs_within(
    model: str, budgets: Sequence[str], limited: Callable[[int], Sequence[str]], spill: Path
) -> list[dict[str, float]]:
    """What an epoch within each of some budgets tells, under a hard limit that kills it where it takes more than is allowed for."""
    epochs, roomy_bytes = [], 4 << 30
    names = (f"{model}@{budget}" for budget in budgets)
    with driver(*names, spill=spill, start=limited(roomy_bytes)) as process:
        told = process.told()
        for budget in budgets:
            limited(int(told["anonymous_bytes"] + told["budget_bytes"]) + BESIDES_BYTES + OF_SYSTEM_BYTES)
            epoch = process.go_on()
            assert epoch, (
                f"the budget @{budget} of {told['budget_bytes']} bytes is exceeded by more than is allowed for"
            )
            assert told["peak_bytes"] <= told["budget_bytes"]
            assert epoch["above_bytes"] <= told["budget_bytes"] + BESIDES_BYTES
            epochs.append(epoch)
            limited(roomy_bytes)
            told = process.go_on()
    return epochs


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["gcn", "ggnn", "residual-gcn:4", "residual-gcn:8"])
def test_the_least_budget_survives(model: str, limited: Callable[[int], Sequence[str]], tmp_path: Path) -> None:
    epochs_within(model, ["least"], limited, tmp_path)


# Times as long as with a roomy budget that an epoch may take with the one that is offered.
A_FEW = 6


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    "model", ["gcn", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("ggnn", "residual-gcn:8"))]
)
def test_the_budget_that_is_offered_survives_and_is_of_use(
    model: str, limited: Callable[[int], Sequence[str]], tmp_path: Path
) -> None:
    roomy, offered = epochs_within(model, ["8", "offered"], limited, tmp_path)
    assert offered["epoch_s"] < A_FEW * roomy["epoch_s"]

"""Workers on a simulated device compute what one processor computes, and all that they compute with is on the device."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.workers.device_driver import EPOCHS, SIZE, cases
from tests.runtime.workers.exactness_driver import Numbers, require_same
from tests.runtime.workers.processes import run_driver
from tests.shared import SharedFolder

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(900)]
RELATIVE = 1e-5
ON_DEVICE = {
    "exchanging rows of the halo",
    "exchanging gradients of the halo",
    "adding gradients",
    "adding means of a BatchNorm",
    "adding gradients of a BatchNorm's means",
    "measuring how fast workers send",
}
ON_BOTH = {"asking for rows of the halo", "moving vertices between workers"}
"Numbers of rows travel from host to host, ids and values from device to device."


@pytest.fixture(scope="module")
def folder(shared_folder: SharedFolder) -> Path:
    return shared_folder("simulated device", partial(run_driver, "device_driver"))


def said(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"worker {rank}.json").read_text())
    return found


@pytest.mark.parametrize("name", [case.name for case in cases()])
def test_workers_on_devices_compute_what_one_processor_computes(folder: Path, name: str) -> None:
    expected: Numbers = torch.load(folder / "alone.pt")[name]
    for rank in range(SIZE):
        require_same(torch.load(folder / f"worker {rank}.pt")[name], expected, RELATIVE, f"worker {rank}")


def test_rows_and_gradients_travel_from_device_to_device(folder: Path) -> None:
    for rank in range(SIZE):
        travelled = said(folder, rank)["travelled"]
        assert travelled.keys() > ON_DEVICE | ON_BOTH
        for doing, kinds in travelled.items():
            expected = ["simulated"] if doing in ON_DEVICE else ["cpu"]
            assert kinds == (["cpu", "simulated"] if doing in ON_BOTH else expected), doing


def test_workers_on_devices_are_balanced_by_cost(folder: Path) -> None:
    told = [said(folder, rank)["balanced"] for rank in range(SIZE)]
    assert told[1:] == told[:-1]
    assert len(told[0]) == 3
    assert all(seconds > 0 for epoch in told[0] for seconds in epoch["worker_s"])
    assert told[0][-1]["predicted_worker_s"] is not None


def test_a_run_on_devices_resumes_bit_for_bit(folder: Path) -> None:
    """The whole Trainer: metrics, early stopping, checkpoints, resume."""
    found = {name: said(folder, 0)["runs"][name] for name in ("whole", "resumed", "alone")}
    assert [line["epoch"] for line in found["whole"]] == list(range(1, EPOCHS + 1))
    assert found["resumed"] == found["whole"]
    for mine, theirs in zip(found["whole"], found["alone"], strict=True):
        assert mine == pytest.approx(theirs, rel=RELATIVE)
    for rank in range(1, SIZE):
        assert said(folder, rank)["runs"]["whole"] == found["whole"]

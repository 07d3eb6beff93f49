"""Epochs in memory on a device: recorded ones have the bits of queued ones, cost three calls, and what cannot be recorded says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.shared import SharedFolder
from tests.train.recorded_driver import CAUSES, MODELS, OPTIONS

pytestmark = pytest.mark.slow
CALLS = {"copies": 1, "launches": 1, "late reads": 1}
"What the host queues for a recorded epoch."
REASONS = {
    "a number is read": "aten._local_scalar_dense.default (recorded_driver.py:",
    "pageable memory is copied": "a copy of pageable memory (recorded_driver.py:",
    "shapes depend on data": "aten.index.Tensor (recorded_driver.py:",
    "numbers of Python": "the model draws random numbers on the host",
    "numbers of torch": "the model draws random numbers on the host",
    "a count of calls": "calls of the model changes in every epoch",
    "a tensor that is kept": "the storage of last of the model changes in every epoch",
    "a seed more": "the model draws a different number of seeds in each epoch (recorded_driver.py:",
    "a layer more": "the storage of the optimizer changes in every epoch",
    "a list that grows": "told of the model changes in every epoch",
    "hooks": "the model or optimizer has hooks, which run on the host",
    "an optimizer of the host": "the optimizer Adam is not capturable",
    "lbfgs": "the optimizer LBFGS is not capturable",
}
UNRECORDED = dict.fromkeys(
    ("cycled betas", "cycled betas, every third epoch"), "betas of the optimizer changed after epochs were recorded"
)


def seen_by(driver: str, shared_folder: SharedFolder) -> dict[str, Any]:
    """What a program saw that runs on a simulated device."""

    def fill(folder: Path) -> None:
        command = [sys.executable, "-m", f"tests.train.{driver}", str(folder / "seen.json")]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr

    found: dict[str, Any] = json.loads((shared_folder(driver, fill) / "seen.json").read_text())
    return found


@pytest.fixture(scope="module")
def seen(shared_folder: SharedFolder) -> dict[str, Any]:
    """What the program saw."""
    return seen_by("recorded_driver", shared_folder)


def assert_queued(case: dict[str, Any], reason: str) -> None:
    """Epochs have the bits of queued ones, and one line says why they are queued."""
    assert case["same"]
    (message,) = case["messages"]
    assert message.startswith("Epochs are not replayed as CUDA graphs (")
    assert reason in message.partition("because ")[2]


def assert_ended(case: dict[str, Any], reason: str) -> None:
    assert_queued(case, f"{reason} after epochs were recorded")
    assert 0 < sum(each.get("launches", 0) for each in case["counts"]) < case["epochs"] - 1


def assert_recorded(case: dict[str, Any]) -> None:
    """Epochs have the bits of queued ones, and were launched."""
    assert case["same"]
    assert case["messages"] == []
    assert sum(each.get("launches", 0) for each in case["counts"]) >= len(case["counts"]) - 3


@pytest.mark.parametrize("name", MODELS)
def test_recorded_epochs_are_bitwise_queued_ones(seen: dict[str, Any], name: str) -> None:
    case = seen["models"][name]
    assert_recorded(case)
    assert sum(each.get("launches", 0) for each in case["counts"]) == case["epochs"] - 1


@pytest.mark.parametrize("name", OPTIONS)
def test_optimizers_schedules_and_evaluations_are_those_of_queued_epochs(seen: dict[str, Any], name: str) -> None:
    case = seen["options"][name]
    if name in UNRECORDED:
        assert_queued(case, UNRECORDED[name])
    else:
        assert_recorded(case)


def test_from_the_third_epoch_on_the_host_queues_a_copy_a_launch_and_a_late_read(seen: dict[str, Any]) -> None:
    # The first report comes when the second epoch is queued, the last one when none is left.
    assert seen["counted"][1:] == [CALLS] * (len(seen["counted"]) - 2) + [{}]


@pytest.mark.parametrize("name", CAUSES)
def test_what_cannot_be_recorded_is_queued_and_said_once(seen: dict[str, Any], name: str) -> None:
    assert_queued(seen["causes"][name], REASONS[name])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("features", "features changed"),
        ("edge data", "the edge data 'weight' changed"),
        ("storage", "the storage of attend_src of layers.0 changed"),
        ("loss", "weight of the loss changed"),
        ("hook", "the presence of hooks changed"),
    ],
)
def test_a_change_ends_a_recording(seen: dict[str, Any], name: str, reason: str) -> None:
    assert_ended(seen["changes"][name], reason)


def test_too_little_memory_and_a_driver_without_graphs_are_said(seen: dict[str, Any]) -> None:
    assert_queued(seen["out of memory"], "device memory is too small for a CUDA graph")
    assert "CUDA error: operation not supported" in seen["no graphs"][0]


@pytest.mark.parametrize("name", ["values", "labels", "odd attributes", "own dropout"])
def test_other_tasks_and_numbers_of_the_device_are_recorded(seen: dict[str, Any], name: str) -> None:
    assert_recorded(seen["tasks"][name])


def test_a_resumed_run_is_the_whole_one(seen: dict[str, Any]) -> None:
    assert_recorded(seen["resumed"])
    assert seen["resumed"]["whole"]


def test_a_reporter_that_needs_weights_sees_those_of_its_epoch(seen: dict[str, Any]) -> None:
    assert seen["own reporter"]


def test_a_reporter_need_not_inherit_from_reporter(seen: dict[str, Any]) -> None:
    assert seen["plain reporter"]


def test_float64_is_exact_although_rates_on_a_device_are_float32(seen: dict[str, Any]) -> None:
    assert seen["float64"] < 1e-11


def test_ctrl_c_during_a_launch_ends_the_run_after_the_epoch(seen: dict[str, Any]) -> None:
    case = seen["interrupted"]
    assert case["interrupted"]
    assert 3 < case["stopped"] < 20
    assert case["same"]


def test_a_run_that_diverges_names_the_epoch_although_it_is_read_late(seen: dict[str, Any]) -> None:
    assert "training loss of epoch 3 is nan" in seen["diverged"]["error"]
    assert seen["diverged"]["queued"] >= 3


def test_the_interpreter_refuses_memory_that_was_freed(seen: dict[str, Any]) -> None:
    assert seen["freed"] == "[2.0, 2.0, 2.0, 2.0] a recorded operator reads or writes memory that was freed"

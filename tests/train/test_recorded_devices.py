"""Streamed epochs of several devices: recorded ones have the bits of queued ones, graphs do not race, and the host queues little."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.device.several import RECORDED
from tests.shared import SharedFolder
from tests.train.test_recorded import assert_queued, seen_by

pytestmark = pytest.mark.slow
ROUTED = [*(f"{name}, {route}" for name, route in RECORDED), "gcn, empty intervals"]
ON_TOP = 8192
"Bytes of parameters, of what is made of them, and of results."


@pytest.fixture(scope="module")
def seen(shared_folder: SharedFolder) -> dict[str, Any]:
    """What the program saw."""
    return seen_by("recorded_devices_driver", shared_folder)


@pytest.mark.parametrize("name", ROUTED)
def test_recorded_epochs_are_queued_ones(seen: dict[str, Any], name: str) -> None:
    case = seen["routes"][name]
    assert case["same"]
    assert case["messages"] == []
    assert case["intervals"] > 1
    # The last epoch is reported when none is left to queue.
    assert case["counts"][1:] == [case["counts"][1]] * (case["epochs"] - 2) + [{}]
    counts = case["counts"][1]
    assert set(counts) == {"copies", "launches", "peer copies", "late reads"}
    assert counts["copies"] == counts["late reads"] == 1
    # The caller's work before, between and after the plans' has graphs of its own.
    assert case["segments"] <= counts["launches"] <= case["segments"] + 6
    # A block has some tensors; parameters and seeds go to the other devices, sums come from there.
    assert case["copies"] <= counts["peer copies"]


@pytest.mark.parametrize("name", ROUTED)
def test_recordings_keep_the_budget_of_each_device(seen: dict[str, Any], name: str) -> None:
    case = seen["routes"][name]
    assert len(case["used"]) > 1
    for used, planned in zip(case["used"], case["planned"], strict=True):
        assert used <= planned + ON_TOP


def test_without_a_wait_between_graphs_a_race_is_found(seen: dict[str, Any]) -> None:
    assert seen["races"]["whole"]
    for kind in ("graph", "copy"):
        found, said = seen["races"][kind]
        # Others order the same work by the way of another device.
        assert found >= said / 3 > 0


def test_another_model_in_autograd_is_not_recorded(seen: dict[str, Any]) -> None:
    assert seen["autograd"] == [True, False]


def test_blocks_in_files_are_queued(seen: dict[str, Any]) -> None:
    assert_queued(seen["causes"]["a file of blocks"], "blocks lie in files of the spill folder")


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("another device", "of another device"),
        ("memory of another device", "cudaMalloc on another device"),
        ("a copy between devices", "a copy between devices"),
        ("another graph", "a wait for an event of another graph"),
        ("no graph", "a wait for what is not recorded"),
        ("two captures", "PyTorch captures one graph at a time"),
    ],
)
def test_the_interpreter_refuses_what_cuda_refuses(seen: dict[str, Any], name: str, refused: str) -> None:
    assert refused in seen["refused"][name]

"""Streamed epochs on a device: recorded ones have the bits of queued ones, cost three calls, and what cannot be recorded says why."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shared import SharedFolder
from tests.train.recorded_streams_driver import MODELS, SHAPES
from tests.train.test_recorded import CALLS, assert_ended, assert_queued, assert_recorded, seen_by

pytestmark = pytest.mark.slow
REASONS = {
    "spill": "blocks lie in files of the spill folder",
    "a file of features": "the features are read from a file",
    "picked rows": "the host picks the rows that some chunks need",
    "no pinning": "the host reads the features for the device: host memory cannot be pinned",
    "random numbers": "the model draws random numbers besides dropout's",
    "a loss that reads": "aten._local_scalar_dense.default (recorded_streams_driver.py:",
    "fragments": "recordings reserve 2",
    "too little memory": "device memory is too small for a CUDA graph",
    "a profile": "a profile of the last one is written",
}


@pytest.fixture(scope="module")
def seen(shared_folder: SharedFolder) -> dict[str, Any]:
    """What the program saw."""
    return seen_by("recorded_streams_driver", shared_folder)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MODELS)
def test_recorded_epochs_are_queued_ones_in_three_calls(seen: dict[str, Any], name: str, shape: str) -> None:
    case = seen["models"][f"{name}, {shape}"]
    assert_recorded(case)
    # The last epoch is reported when none is left to queue.
    assert case["counts"][1:] == [CALLS] * (case["epochs"] - 2) + [{}]
    assert (case["intervals"] > 1) == (shape != "whole")


def test_slices_are_recorded(seen: dict[str, Any]) -> None:
    assert_recorded(seen["sliced"])
    assert seen["sliced"]["counts"][1:-1] == [CALLS] * (seen["sliced"]["epochs"] - 2)
    assert seen["sliced"]["gathers"] > 2


def test_grids_have_their_shapes(seen: dict[str, Any]) -> None:
    undivided = {case for case, found in seen["models"].items() if found["is_undivided"]}
    assert undivided == {"gcn, rectangular", "ggnn, rectangular", "own, rectangular"}


@pytest.mark.parametrize("name", REASONS)
def test_what_cannot_be_recorded_is_queued_and_said_once(seen: dict[str, Any], name: str) -> None:
    assert_queued(seen["causes"][name], REASONS[name])
    assert not any(each.get("launches") for each in seen["causes"][name]["counts"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("features", "features changed"),
        ("edge data", "the edge data 'weight' changed"),
        ("plan", "the plan changed"),
    ],
)
def test_a_change_ends_a_recording(seen: dict[str, Any], name: str, reason: str) -> None:
    assert_ended(seen["changes"][name], reason)


def test_a_resumed_run_is_the_whole_one(seen: dict[str, Any]) -> None:
    assert_recorded(seen["resumed"])
    assert seen["resumed"]["whole"]


def test_a_recording_takes_no_more_than_its_plan(seen: dict[str, Any]) -> None:
    peak = seen["peak"]
    assert peak["recorded"] <= peak["planned"] + peak["spare"] + peak["on top"]


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("unforked", "the lane load waits for nothing that is recorded"),
        ("unjoined", "nobody waits for the lane load"),
        ("raced", "touch the same memory"),
        ("freed", "memory is free that the lane load may use"),
        ("waited", "cudaEventSynchronize"),
    ],
)
def test_the_interpreter_refuses_what_cuda_refuses(seen: dict[str, Any], name: str, refused: str) -> None:
    assert refused in seen["refused"][name]

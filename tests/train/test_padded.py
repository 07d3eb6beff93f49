"""Mini-batches that a device samples: padded and recorded ones have the bits of queued ones, and the numbers of those without padding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.shared import SharedFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"),
]
BATCHES = 4


@pytest.fixture(scope="module")
def seen(shared_folder: SharedFolder) -> dict[str, Any]:
    """What the program saw."""

    def fill(folder: Path) -> None:
        command = [sys.executable, "-m", "tests.train.padded_driver", str(folder / "seen.json")]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=550)
        assert ran.returncode == 0, ran.stderr

    found: dict[str, Any] = json.loads((shared_folder("padded", fill) / "seen.json").read_text())
    return found


def assert_batches_recorded(case: dict[str, Any]) -> None:
    """Batches have the bits of queued ones, and nothing but a copy, a launch and a late read was queued for each."""
    assert case["same"]
    (message,) = [text for text in case["messages"] if "tier" not in text]
    assert message.startswith("Mini-batches are sampled by simulated:0.")
    # Each of the two envelopes is queued once, then recorded once.
    calls = {"copies": BATCHES, "launches": BATCHES, "late reads": BATCHES}
    for counts in case["counts"][3:-1]:
        assert counts == calls


@pytest.mark.parametrize("name", ["gcn", "PyG"])
def test_a_batch_is_a_copy_a_launch_and_a_late_read(seen: dict[str, Any], name: str) -> None:
    assert_batches_recorded(seen[name])


def test_rows_are_gathered_from_a_hot_tier_and_pinned_memory(seen: dict[str, Any]) -> None:
    case = seen["hot"]
    assert case["same"]
    assert case["counts"][3]["launches"] == case["counts"][3]["copies"] == BATCHES


def test_kernels_of_passes_are_recorded_with_the_cuts_that_the_device_makes(seen: dict[str, Any]) -> None:
    case = seen["kernels"]
    assert case["same"]
    assert case["counts"][-1]["launches"] == BATCHES


@pytest.mark.parametrize("model", ["difference", "weighted means"])
def test_padding_changes_no_number(seen: dict[str, Any], model: str) -> None:
    assert seen[model] < 1e-11


def test_a_batch_beyond_the_envelope_is_trained_in_its_turn(seen: dict[str, Any]) -> None:
    case = seen["beyond"]
    assert case["same"]
    assert case["difference"] < 1e-11
    later = [(epoch, number) for epoch, number in case["again"] if epoch > 1]
    # Of two runs.
    assert 0 < len(later) < 2 * 4 * BATCHES


def test_a_run_that_is_resumed_within_an_epoch_is_the_whole_one(seen: dict[str, Any]) -> None:
    assert seen["resumed"] == {"1, 2": True, "2, 1": True, "3, 2": True}


def test_padded_batches_that_cannot_be_recorded_are_queued(seen: dict[str, Any]) -> None:
    case = seen["a number is read"]
    assert case["same"]
    (message,) = case["messages"][1:]
    assert message.startswith("Padded mini-batches are not replayed as CUDA graphs (")
    assert "aten._local_scalar_dense.default (padded_driver.py:" in message


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("BatchNorm", "the BatchNorm1d 'norm' would count padding"),
        ("RMSprop", "the optimizer RMSprop cannot leave out a step on the device"),
    ],
)
def test_batches_that_are_not_padded_say_why(seen: dict[str, Any], name: str, reason: str) -> None:
    prefix = "Mini-batches are neither padded nor replayed as CUDA graphs, because"
    assert seen[name][1:] == [f"{prefix} {reason}."]

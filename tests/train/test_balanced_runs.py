"""Two workers that are balanced by cost train what one process trains, across moves; the same moves give the same bits."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.workers.processes import run_driver
from tests.shared import SharedFolder
from tests.train.balance_driver import EPOCHS, SAVED

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(900)]
RELATIVE = 1e-11
Found = dict[str, Any]


@pytest.fixture(scope="module")
def folder(shared_folder: SharedFolder) -> Path:
    return shared_folder("balanced", partial(run_driver, "balance_driver", package="tests.train"))


def found(folder: Path, name: str, rank: int = 0) -> Found:
    return torch.load(folder / f"{name}, {rank}.pt", weights_only=False)


def moves(history: list[Found]) -> list[int]:
    return [line["epoch"] for line in history if line["moved_to"] is not None]


def without_clocks(history: list[Found]) -> list[Found]:
    return [
        {name: value for name, value in line.items() if name not in ("epoch_s", "mteps", "move_s")}
        for line in history
    ]


def test_losses_and_weights_are_those_of_one_process_across_moves(folder: Path) -> None:
    alone, together = found(folder, "alone"), found(folder, "first")
    assert moves(together["history"])
    assert together["history"][-1]["epoch"] == EPOCHS
    assert sum("Vertices move between the workers: new parts take " in text for text in together["said"]) == len(
        moves(together["history"])
    )
    for mine, theirs in zip(together["history"], alone["history"], strict=True):
        for name in ("loss", "train/loss", "val/loss", "val/accuracy", "lr", "num_edges"):
            assert mine[name] == pytest.approx(theirs[name], rel=RELATIVE), (mine["epoch"], name)
    for name, value in together["weights"].items():
        torch.testing.assert_close(value, alone["weights"][name], rtol=RELATIVE, atol=RELATIVE)
    for split, metrics in together["metrics"].items():
        assert metrics == pytest.approx(alone["metrics"][split], rel=RELATIVE)
    torch.testing.assert_close(together["predictions"], alone["predictions"], rtol=RELATIVE, atol=RELATIVE)


def test_the_same_moves_give_the_same_bits_at_every_worker(folder: Path) -> None:
    first = found(folder, "first")
    for name, rank in (("first", 1), ("again", 0), ("again", 1)):
        other = found(folder, name, rank)
        assert without_clocks(other["history"]) == without_clocks(first["history"])
        for key, value in other["weights"].items():
            assert torch.equal(value, first["weights"][key])
        assert torch.equal(other["predictions"], first["predictions"])


def test_a_resumed_run_starts_with_the_recorded_ranges(folder: Path) -> None:
    half, resumed = found(folder, "halves"), found(folder, "halves resumed")
    whole = found(folder, "first")
    assert without_clocks(resumed["history"][: SAVED - 1]) == without_clocks(half["history"][: SAVED - 1])
    last, first = resumed["history"][SAVED - 1 : SAVED + 1]
    assert first["worker_bounds"] == (last["moved_to"] or last["worker_bounds"])
    assert first["worker_bounds"] != half["history"][0]["worker_bounds"]
    # It predicts with what was learned.
    assert first["predicted_worker_s"] is not None
    for mine, theirs in zip(resumed["history"], whole["history"], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=RELATIVE)


def test_a_worker_that_is_killed_in_a_move_ends_the_other(folder: Path) -> None:
    said = json.loads((folder / "killed.json").read_text())
    assert said["text"].startswith("worker 1 is gone: its connection was lost")
    assert "while moving vertices between workers (in worker 0 of 2)" in said["text"]
    assert "continue with --resume" in said["text"]

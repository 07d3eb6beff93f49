"""Records of epochs are lines of metrics.jsonl, and lines are records again; damaged lines are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sagann.runtime.tiered import TierCounts, Traffic
from sagann.train import EpochRecord
from sagann.train.trainer_work import TrainerWork
from sagann.train.worker_balance import WorkerBalance

PLAIN = EpochRecord(
    epoch=3,
    loss=0.1,
    epoch_s=0.2,
    lr=0.3,
    num_edges=4,
    metrics={"val": {"loss": 0.5, "accuracy": 1.0}, "train": {"loss": 0.25}},
)
TRAFFIC = Traffic(
    hot=TierCounts(rows=3, num_bytes=96), cold=TierCounts(rows=1, num_bytes=32), cold_reads=1, cold_read_bytes=32
)
WORK = TrainerWork(
    names=("host", "accelerator0"),
    seeds=(30, 10),
    train_s=(1.5, 0.5),
    idle_s=(0.0, 1.0),
    transfer_s=(0.0, 0.25),
    sample_s=0.1,
    load_s=0.2,
    num_moves=3,
    why="2 seeds go to the processor: an iteration is expected at 1 s, after 2 s.",
)
BALANCE = WorkerBalance(
    bounds=(0, 4, 10), edges=(30, 10), seconds=(1.5, 0.5), predicted_s=(1.4, 0.6), moved_to=(0, 3, 10), move_s=0.25
)
UNMOVED = replace(BALANCE, predicted_s=None, moved_to=None, move_s=None)
RECORDS = {
    "plain": PLAIN,
    "tiers": replace(PLAIN, traffic=TRAFFIC),
    "trainers": replace(PLAIN, trainers=WORK),
    "workers": replace(PLAIN, balance=BALANCE),
    "workers that stay": replace(PLAIN, balance=UNMOVED),
}


def line_of(name: str) -> dict[str, Any]:
    return json.loads(json.dumps(RECORDS[name].to_json()))


@pytest.mark.parametrize("name", RECORDS)
def test_a_line_and_back(name: str) -> None:
    assert EpochRecord.from_json(line_of(name)) == RECORDS[name]
    assert line_of(name)["val/accuracy"] == 1.0


def test_numbers_that_older_lines_lack() -> None:
    assert EpochRecord.from_json({"epoch": 1, "loss": 0.5, "epoch_s": 0.1, "lr": 0.01}).num_edges == 0
    values = line_of("trainers")
    del values["trainer_why"]
    assert EpochRecord.from_json(values).trainers == replace(WORK, why="")


def test_shares_are_those_of_seeds_and_of_edges() -> None:
    assert WORK.shares == BALANCE.shares == (0.75, 0.25)
    assert replace(WORK, seeds=(0, 0)).shares == replace(BALANCE, edges=(0, 0)).shares == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "damage", "error"),
    [
        ("plain", {"num_edges": -1}, TypeError),
        ("tiers", {"cold_rows": -1}, TypeError),
        ("trainers", {"trainer_seeds": [1]}, ValueError),
        ("trainers", {"trainer_s": [1.0, float("nan")]}, TypeError),
        ("trainers", {"transfer_s": "0"}, TypeError),
        ("trainers", {"trainer_why": 1}, TypeError),
        ("workers", {"worker_bounds": [0]}, ValueError),
        ("workers", {"worker_bounds": [1, 4, 10]}, ValueError),
        ("workers", {"moved_to": [0, 11, 10]}, ValueError),
        ("workers", {"worker_edges": [30, -1]}, TypeError),
        ("workers", {"worker_s": [1.0]}, ValueError),
        ("workers", {"predicted_worker_s": [1.0, 2.0, 3.0]}, ValueError),
    ],
)
def test_a_damaged_line_is_refused(name: str, damage: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        EpochRecord.from_json({**line_of(name), **damage})


@pytest.mark.parametrize(
    ("name", "value"), [("tiers", "cold_reads"), ("trainers", "trainer_seeds"), ("workers", "moved_to")]
)
def test_a_line_that_lacks_a_value_is_refused(name: str, value: str) -> None:
    values = line_of(name)
    del values[value]
    with pytest.raises(KeyError):
        EpochRecord.from_json(values)

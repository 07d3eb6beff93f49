"""The work of several trainers in a line of metrics.jsonl, and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sagann.train import EpochRecord
from sagann.train.trainer_work import TrainerWork

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
RECORD = EpochRecord(epoch=3, loss=0.1, epoch_s=0.2, lr=0.3, trainers=WORK)


def line() -> dict[str, Any]:
    return json.loads(json.dumps(RECORD.to_json()))


def test_a_line_and_back() -> None:
    assert EpochRecord.from_json(line()) == RECORD


def test_a_line_without_a_decision_is_read() -> None:
    values = line()
    del values["trainer_why"]
    assert EpochRecord.from_json(values).trainers == replace(WORK, why="")


def test_shares_are_those_of_seeds() -> None:
    assert WORK.shares == (0.75, 0.25)
    assert replace(WORK, seeds=(0, 0)).shares == (0.0, 0.0)


def test_a_line_of_one_trainer_has_no_work() -> None:
    values = replace(RECORD, trainers=None).to_json()
    assert "trainers" not in values
    assert EpochRecord.from_json(values).trainers is None


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ({"trainer_seeds": [1]}, ValueError),
        ({"trainer_seeds": [1, -2]}, TypeError),
        ({"trainer_s": [1.0, float("nan")]}, TypeError),
        ({"transfer_s": "0"}, TypeError),
        ({"trainers": "host"}, TypeError),
        ({"trainer_moves": 1.5}, TypeError),
        ({"trainer_why": 1}, TypeError),
    ],
)
def test_damage_is_seen(damage: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        EpochRecord.from_json({**line(), **damage})


@pytest.mark.parametrize(
    "name", ["trainer_seeds", "trainer_s", "trainer_idle_s", "transfer_s", "sample_s", "load_s"]
)
def test_a_missing_value_is_seen(name: str) -> None:
    values = line()
    del values[name]
    with pytest.raises(KeyError):
        EpochRecord.from_json(values)

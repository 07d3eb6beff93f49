"""The parts of an epoch in a line of metrics.jsonl, and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sagann.train import EpochRecord
from sagann.train.worker_balance import WorkerBalance

BALANCE = WorkerBalance(
    bounds=(0, 4, 10), edges=(30, 10), seconds=(1.5, 0.5), predicted_s=(1.4, 0.6), moved_to=(0, 3, 10), move_s=0.25
)
RECORD = EpochRecord(epoch=3, loss=0.1, epoch_s=0.2, lr=0.3, balance=BALANCE)


def line(record: EpochRecord = RECORD) -> dict[str, Any]:
    return json.loads(json.dumps(record.to_json()))


@pytest.mark.parametrize("balance", [BALANCE, replace(BALANCE, predicted_s=None, moved_to=None, move_s=None)])
def test_a_line_and_back(balance: WorkerBalance) -> None:
    record = replace(RECORD, balance=balance)
    assert EpochRecord.from_json(line(record)) == record


def test_shares_are_those_of_edges() -> None:
    assert BALANCE.shares == (0.75, 0.25)
    assert replace(BALANCE, edges=(0, 0)).shares == (0.0, 0.0)


def test_a_line_without_workers_has_no_balance() -> None:
    record = replace(RECORD, balance=None)
    assert "worker_bounds" not in line(record)
    assert EpochRecord.from_json(line(record)).balance is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"worker_bounds": [0]}, ValueError),
        ({"worker_bounds": [1, 4, 10]}, ValueError),
        ({"worker_bounds": [0, 4.5, 10]}, TypeError),
        ({"moved_to": [0, 10]}, ValueError),
        ({"moved_to": [0, 11, 10]}, ValueError),
        ({"worker_edges": [30, -1]}, TypeError),
        ({"worker_s": [1.0]}, ValueError),
        ({"worker_s": "1.0"}, TypeError),
        ({"move_s": "1.0"}, TypeError),
        ({"predicted_worker_s": [1.0, 2.0, 3.0]}, ValueError),
    ],
)
def test_a_damaged_line_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        EpochRecord.from_json({**line(), **change})


@pytest.mark.parametrize("name", ["worker_edges", "worker_s", "predicted_worker_s", "moved_to", "move_s"])
def test_a_line_that_lacks_a_value_is_refused(name: str) -> None:
    values = line()
    del values[name]
    with pytest.raises(KeyError):
        EpochRecord.from_json(values)

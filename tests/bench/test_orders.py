"""The benchmark of orders: one table, the same budget and P for all, and epochs only where they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.orders import __main__ as orders
from bench.orders.__main__ import COLUMNS, LEAST, TIMED, verdict
from bench.orders.plans import ORDERS
from sagann.runtime.streaming.executor import Executor

TINY = ["--datasets", "tiny", "--models", "gcn", "gated-gcn", "--hidden", "64", "--threads", "1"]


def rows_of(text: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert tuple(lines[0]) == columns
    return [dict(zip(columns, cells, strict=True)) for cells in lines[2:]]


def test_a_table_of_bytes_without_running(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Executor, "forward")
    assert orders.main(TINY) == 0
    rows = rows_of(capsys.readouterr().out, COLUMNS)
    assert [(row["model"], row["order"]) for row in rows] == [
        (model, order) for model in ("gcn", "gated-gcn") for order in ORDERS
    ]
    for at in range(0, len(rows), len(ORDERS)):
        column, row, stage = rows[at : at + len(ORDERS)]
        assert column["times column"] == "1.00"
        assert len({each["budget MiB"] for each in (column, row, stage)}) == 1
        assert len({each["P"] for each in (column, row, stage)}) == 1
        assert int(column["P"]) > 1
    # Of the last model, states are wide.
    assert float(row["times column"]) > 1.2


@pytest.mark.thorough
def test_epochs_are_run_where_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ["--datasets", "tiny", "--models", "gated-gcn", "--hidden", "16", "--threads", "1", "--run"]
    assert orders.main([*given, "--rounds", "1", "--work", str(tmp_path)]) == 0
    rows = rows_of(capsys.readouterr().out, COLUMNS + TIMED)
    assert [row["order"] for row in rows] == list(ORDERS)
    assert all(float(row["s"]) > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []


def test_a_ratio_is_judged_by_its_target() -> None:
    for order, least in LEAST.items():
        assert verdict(order, least).endswith(": yes")
        assert verdict(order, least - 0.01).endswith(": **no**")
    assert verdict("column", 1.0) == "-"

"""The tables of HyScale-GNN: figures of the paper, simulated on its machine."""

from __future__ import annotations

import pytest

from bench.hyscale import __main__ as hyscale
from bench.hyscale.cases import CASES
from sagann.machines import published_machine
from tests.bench.tables import rows_of

U250 = published_machine(hyscale.MACHINE)


def test_epochs_are_counted_as_the_table_says() -> None:
    lines = list(hyscale._epochs(U250))
    rows = rows_of("\n".join(lines), hyscale.EPOCH_COLUMNS)
    assert len(rows) == len(CASES)
    for row, case in zip(rows, CASES, strict=True):
        simulated, error = float(row["simulated s"]), float(row["error"].rstrip("%")) / 100
        assert simulated / case.paper_s - 1 == pytest.approx(error, abs=0.02)
    errors = [abs(hyscale.error_of(hyscale.epoch_of(U250, case), case)) for case in CASES]
    # What the pages say.
    assert (sum(each <= 0.25 for each in errors), sum(each <= 0.4 for each in errors)) == (8, 9)
    assert (
        f"- {sum(each <= 0.25 for each in errors)} of 10 within 25%, {sum(each <= 0.4 for each in errors)} within 40%"
        in lines[1]
    )

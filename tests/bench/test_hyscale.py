"""The tables of HyScale-GNN: figures of the paper, simulated on its machine."""

from __future__ import annotations

import pytest

from bench.hyscale import __main__ as hyscale
from bench.hyscale.__main__ import CASES, FIGURE_11
from sagann.machines import published_machine
from tests.bench.tables import rows_of

U250 = published_machine(hyscale.MACHINE)


def test_epochs_are_counted_as_the_table_says() -> None:
    section = "\n".join(hyscale._epochs(U250))
    for row, case in zip(rows_of(section, hyscale.EPOCH_COLUMNS), CASES, strict=True):
        simulated, error = float(row["simulated s"]), float(row["error"].rstrip("%")) / 100
        assert simulated / case.paper_s - 1 == pytest.approx(error, abs=0.02)
    errors = [abs(hyscale.error_of(hyscale.epoch_of(U250, case), case)) for case in CASES]
    # What the pages say.
    assert [sum(each <= limit for each in errors) for limit in (0.25, 0.4)] == [8, 9]
    assert "- 8 of 10 within 25%, 9 within 40%" in section


def test_management_and_a_second_stage_shorten_an_epoch() -> None:
    seconds = hyscale.steps_of(U250, FIGURE_11[0])
    assert seconds["hybrid"] > seconds["management"] > seconds["two stages"]

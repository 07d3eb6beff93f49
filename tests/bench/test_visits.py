"""The benchmark of visits: one table, one budget, and fewer bytes by strips."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import visits
from bench.visits import COLUMNS, SIMULATED, TIMED
from tests.bench.test_orders import rows_of
from tests.plan.machines import ROUND


@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_table_of_every_way(runs: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    machine = tmp_path / "machine.toml"
    machine.write_text(ROUND.to_toml())
    given = [
        "--datasets",
        "tiny",
        "--models",
        "gated-gcn",
        "--hidden",
        "16",
        "--threads",
        "1",
        "--simulations",
        "3",
    ]
    given += ["--machine", str(machine)] + (["--run", "--rounds", "1"] if runs else [])
    assert visits.main(given) == 0
    columns = COLUMNS + SIMULATED + (TIMED if runs else ())
    rows = {row["visits"]: row for row in rows_of(capsys.readouterr().out, columns)}
    assert list(rows) == ["ascending", "zigzag", "strips", "refined", "twice P"]
    assert len({row["budget MiB"] for row in rows.values()}) == 1
    assert int(rows["twice P"]["P"]) == 2 * int(rows["strips"]["P"])
    assert float(rows["strips"]["times ascending"]) < 1
    for column in columns[-2:] if runs else ():
        assert all(float(row[column]) > 0 for row in rows.values())
    assert float(rows["refined"][SIMULATED[0]]) <= float(rows["strips"][SIMULATED[0]])

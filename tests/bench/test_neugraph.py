"""The comparisons of NGra's and NeuGraph's figures: one budget for all ways, and fewer bytes where the papers say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.papers import neugraph
from bench.papers.neugraph import COLUMNS, TIMED
from tests.bench.tables import rows_of
from tests.plan.machines import ROUND

WAYS = {
    "orders": ["column", "row", "stage"],
    "visits": ["ascending", "zigzag", "strips", "twice P", "refined"],
    "rows": ["whole", "picked"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("compare", WAYS)
def test_a_row_for_every_way(compare: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    machine = tmp_path / "machine.toml"
    machine.write_text(ROUND.to_toml())
    given = [compare, "--datasets", "tiny", "--models", "gated-gcn", "--hidden", "16", "--threads", "1"]
    given += ["--simulations", "3", "--machine", str(machine), "--work", str(tmp_path / "work")]
    # Orders are compared by plans alone.
    run, columns = ([], COLUMNS) if compare == "orders" else (["--run", "--rounds", "1"], COLUMNS + TIMED)
    assert neugraph.main([*given, *run]) == 0
    rows = {row["way"]: row for row in rows_of(capsys.readouterr().out, columns)}
    assert list(rows) == WAYS[compare]
    assert len({row["budget MiB"] for row in rows.values()}) == 1
    assert len({row["P"] for name, row in rows.items() if name != "twice P"}) == 1
    times = {name: float(row["times the first"]) for name, row in rows.items()}
    if compare == "orders":
        assert times["row"] > 1.2
    if compare == "visits":
        assert times["strips"] < 1
        assert int(rows["twice P"]["P"]) == 2 * int(rows["strips"]["P"])
        assert float(rows["refined"]["simulated s"]) <= float(rows["strips"]["simulated s"])
    if compare == "rows":
        assert times["picked"] <= 1
    assert list((tmp_path / "work").iterdir()) == []

"""The table of processor and device together: a row for each contestant, with the processor in the device's place."""

from __future__ import annotations

import pytest

from bench.hybrid.device import main


def test_each_task_has_a_table_with_a_row_for_each_contestant(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--vertices", "2e3", "--edges", "2e4", "--features", "8", "--hidden", "8", "--batch-size", "64"]
    turns = ["--settle", "2", "--measured", "2", "--rounds", "2", "--threads", "1"]
    main(["--device", "cpu", "--tasks", "sage:3,2", "gcn:2,2", *sizes, *turns])
    printed = capsys.readouterr().out
    assert "2,000 vertices" in printed
    for task in ("sage, fanouts 3,2", "gcn, fanouts 2,2"):
        rows = printed.split(f"## {task}")[1].split("##")[0].splitlines()
        found = {row.split("|")[1].strip(): row.split("|")[2] for row in rows if row.startswith("| the ")}
        assert set(found) == {"the processor", "the device"}
        assert all(float(milliseconds) > 0 for milliseconds in found.values())

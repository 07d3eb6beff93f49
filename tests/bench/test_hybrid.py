"""The benchmarks of hybrid training, on graphs of a few edges: of trainers, and of processor and device together."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.hybrid.device import main

SMALL = "--vertices 3e3 --edges 3e4 --features 8 --hidden 8 --batch-size 64 --settle 8 --measured 12 --searched 5 --quotas 1 0.5 --rates 1"


@pytest.mark.slow
@pytest.mark.thorough
def test_every_number_is_measured() -> None:
    command = [sys.executable, "-m", "bench.hybrid", *SMALL.split()]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    settled, slowed = ran.stdout.split("## A trainer that becomes half as fast")
    rows = [line.strip("| ").split(" | ") for line in settled.splitlines() if "GB/s |" in line]
    assert [(row[0], row[1]) for row in rows] == [
        (f"{quota} core, 1 GB/s", policy) for quota in ("1", "0.5") for policy in ("joint", "hyscale")
    ]
    policies = [line.strip("| ").split(" | ") for line in slowed.splitlines()[4:] if line.startswith("| ")]
    assert [row[0] for row in policies] == ["static", "joint", "hyscale"]
    assert all(float(row[2]) > 0 for row in policies)


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

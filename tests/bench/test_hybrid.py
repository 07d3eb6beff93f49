"""The benchmark of hybrid training, on a graph of a few edges: every number of its tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

SMALL = "--vertices 3e3 --edges 3e4 --features 8 --hidden 8 --batch-size 64 --settle 8 --measured 12 --searched 5 --quotas 1 0.5 --rates 1"


def ratio_of(row: list[str]) -> float:
    """Forecast over measured seconds of a row."""
    return float(row[4].partition(" ")[0])


@pytest.mark.slow
@pytest.mark.thorough
def test_every_number_is_measured() -> None:
    command = [sys.executable, "-m", "bench.hybrid", *SMALL.split()]
    ran = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_WAIT_POLICY": "passive"}, check=False
    )
    assert ran.returncode == 0, ran.stderr
    settled, slowed = ran.stdout.split("## A trainer that becomes half as fast")
    settled, foretold = settled.split("## What the forecast says")
    forecasts = [line.strip("| ").split(" | ") for line in foretold.splitlines() if "GB/s |" in line]
    # Equal shares, and the split of the forecast.
    assert [row[0] for row in forecasts] == [f"{quota} core, 1 GB/s" for quota in ("1", "1", "0.5", "0.5")]
    assert [row[1] for row in forecasts[::2]] == ["50.0%", "50.0%"]
    for row in forecasts:
        # Milliseconds are rounded, and there are few.
        foretold_ms, measured_ms = float(row[2]), float(row[3])
        least, most = (foretold_ms - 0.5) / (measured_ms + 0.5), (foretold_ms + 0.5) / max(measured_ms - 0.5, 0.1)
        assert least - 0.01 <= ratio_of(row) <= most + 0.01
        assert row[5] in ("processor", "accelerator", "both")
        host, accelerator = (float(cell.rstrip("%")) for cell in row[7:])
        assert row[6] == ("processor" if host > accelerator else "accelerator") or host == accelerator
    said = re.search(
        r"from ([\d.]+) to ([\d.]+) times the runs, \d of 4 within 10%. Of the (\d) bottlenecks that are foretold, (\d) are",
        foretold,
    )
    assert said is not None
    named = [row for row in forecasts if row[5] != "both"]
    assert [int(said[3]), int(said[4])] == [len(named), sum(row[5] == row[6] for row in named)]
    ratios = sorted(map(ratio_of, forecasts))
    assert [float(said[1]), float(said[2])] == [ratios[0], ratios[-1]]
    rows = [line.strip("| ").split(" | ") for line in settled.splitlines() if "GB/s |" in line]
    assert [(row[0], row[1]) for row in rows] == [
        (f"{quota} core, 1 GB/s", policy) for quota in ("1", "0.5") for policy in ("joint", "hyscale")
    ]
    for row in rows:
        assert 0 <= float(row[2].partition("%")[0]) <= 100
        for cell in row[3:7]:
            median, least, most = (float(number) for number in re.findall(r"[\d.]+", cell))
            assert 0 < least <= median <= most
    assert "The accelerator's part of a core is a " in settled
    policies = [line.strip("| ").split(" | ") for line in slowed.splitlines()[4:] if line.startswith("| ")]
    assert [row[0] for row in policies] == ["static", "joint", "hyscale"]
    assert all(float(row[2]) > 0 for row in policies)

"""The benchmark of hybrid training, on a graph of a few edges."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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

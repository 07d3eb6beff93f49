"""kill -9 at random instants and while files are written: whatever a run learns from, it ends with the bits of a run that nobody killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.driver import CHECKPOINT_EVERY, SOURCES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_ALWAYS = ("whole graph", "streamed", "sampled", "workers")


@pytest.mark.parametrize(
    ("source", "num_kills"),
    [
        *((source, 4) for source in _ALWAYS),
        *(pytest.param(source, 40, marks=pytest.mark.thorough) for source in SOURCES),
    ],
)
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, source: str, num_kills: int) -> None:
    # GNU OpenMP would end the forks that run parallel kernels.
    one_thread = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "NUMBA_THREADING_LAYER": "workqueue"}
    command = [sys.executable, "-m", "tests.faults.driver", str(tmp_path), source, str(num_kills), "0"]
    process = subprocess.Popen(command, env=os.environ | one_thread, stdout=subprocess.PIPE, start_new_session=True)
    try:
        out, _ = process.communicate(timeout=840)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, "the driver failed; its traceback is above"
    report = json.loads(out)
    assert report["kills"] >= num_kills
    assert report["resumed"] > 0
    assert report["torn"] > 0
    assert report["lost"] <= CHECKPOINT_EVERY
    assert report["within"] > 0 or not SOURCES[source].has_long_epochs

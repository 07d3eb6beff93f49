"""kill -9 at random instants: real processes, each resumed by another one, until the run is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.kill_driver import CHECKPOINT_EVERY

ROOT = Path(__file__).parents[2]
KINDS = {"whole": "kill", "sampled": "kill sampled", "graphs": "kill sampled", "tiered": "kill sampled"}
"What a killed run trains on, with the kind of its trials."
MARKS = {"sampled": [pytest.mark.thorough], "graphs": [pytest.mark.thorough]}
NUM_KILLS = {False: 20, True: 60}
"Kills of each kind, by whether trials are counted."


@pytest.mark.slow
# A minute alone, and many times as long beside other load.
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.tries(trial), *MARKS.get(kind, [])]) for kind, trial in KINDS.items()],
)
def test_a_kill_at_any_instant_loses_no_more_than_the_work_since_the_last_checkpoint(
    tmp_path, kind, counts_trials, record_property
):
    num_kills = NUM_KILLS[counts_trials]
    one_thread = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    # Scores run parallel kernels before the fork. GNU OpenMP would end the processes that run them after it.
    one_thread["NUMBA_THREADING_LAYER"] = "workqueue"
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.kill_driver", str(tmp_path), str(num_kills), "0", kind],
        cwd=ROOT,
        env={**os.environ, **one_thread},
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] >= num_kills
    record_property("trials", report["kills"])
    assert report["most_epochs_lost"] <= CHECKPOINT_EVERY
    # The kills must have hit the dangerous instants too, or the test would prove little.
    assert report["kills_while_writing"] > 0
    if kind != "whole":
        assert report["kills_with_a_part_of_an_epoch_saved"] > num_kills // 4

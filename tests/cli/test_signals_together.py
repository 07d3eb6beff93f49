"""Signals to runs of several processes: SIGTERM to the first one alone and to all of them, as schedulers send it, and SIGKILL to all."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.test_launch import ENVIRONMENT, OPTIONS, wait_for_epochs, workers_of
from tests.cli.test_process import DEADLINE_S, WITHIN_S
from tests.cli.warm import Warm, WarmProcess
from tests.train.runs import lines_of

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]
TOGETHER = {
    "workers": ("--workers", 2),
    "trainers": ("--sample", "5,5", "--batch-size", 64, "--devices", "host:1,accelerator:1"),
}


def children_of(process: WarmProcess) -> list[int]:
    """Process ids of all that a process has started."""
    found, parents = [], [process.pid]
    while parents:
        for children in Path(f"/proc/{parents.pop()}/task").glob("*/children"):
            pids = [int(pid) for pid in children.read_text().split()]
            found += pids
            parents += pids
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are listed in /proc")
@pytest.mark.parametrize(
    ("kind", "to_all"),
    [
        ("workers", True),
        ("trainers", False),
        pytest.param("workers", False, marks=pytest.mark.thorough),
        pytest.param("trainers", True, marks=pytest.mark.thorough),
    ],
)
def test_sigterm_ends_a_run_of_several_processes_which_resumes(
    blocks: Path, tmp_path: Path, invoke: Invoke, warm: Warm, kind: str, to_all: bool
) -> None:
    folder, memory = tmp_path / "run", set(os.listdir("/dev/shm"))
    # So many epochs that the run does not end before the signal.
    arguments = ("train", "--data", blocks, *OPTIONS, *TOGETHER[kind], "--epochs", 100000, "--out", folder)
    with warm.start(*arguments, env=ENVIRONMENT) as process:
        wait_for_epochs(folder, 4, process)
        pids = children_of(process)
        assert len(pids) >= 1 if kind == "trainers" else len(workers_of(process)) == 2
        since_s = time.monotonic()
        for pid in [*(pids if to_all else ()), process.pid]:
            os.kill(pid, signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (143, ""), err
    assert time.monotonic() - since_s < WITHIN_S
    assert "Error" not in err
    assert "leaked" not in err
    assert "Traceback" not in err
    assert f"sagann train --resume --out {folder}" in err
    # A process that ends with another one does so a moment later.
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() - since_s < WITHIN_S
        time.sleep(0.05)
    # Blocks of shared memory of other tests may come and go; those of this run have gone.
    assert not [name for name in set(os.listdir("/dev/shm")) - memory if str(process.pid) in name]
    done = len(lines_of(folder))
    # Of mini-batches, a checkpoint may be within an epoch.
    assert max(os.listdir(folder / "checkpoints")).startswith(f"epoch-{done:06d}")
    resumed = invoke("train", "--resume", "--out", folder, "--epochs", done + 1, "--workers", 1)
    assert resumed.code == 0, resumed.err
    assert len(lines_of(folder)) == done + 1

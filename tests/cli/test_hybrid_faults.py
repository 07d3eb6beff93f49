"""Faults of runs of several trainers, as they really happen: memory that runs out, shared memory that is full, numbers that are not finite.

No process and no shared memory stays behind, and the run goes on with the trainers that are left.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.test_launch import wait_for_epochs
from tests.cli.test_process import DEADLINE_S, PROGRAM
from tests.hybrid import faulty_layer
from tests.hybrid.processes import is_running, may_mount, memory_group, memory_of, spawned_by, with_own_memory
from tests.train.runs import lines_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the faults are made by Linux"),
]
FAULTY = f"{faulty_layer.__file__}:Faulty"
TRAIN = ("train", "--data", "demo", "--sample", "10,5", "--batch-size", "64", "--epochs", "100000")
OF_LAYER = (
    "--model",
    FAULTY,
    "--hidden",
    "8",
    "--engine",
    "naive",
    "--checkpoint-every",
    "1",
    "--sharing",
    "static",
)
MEMORY_BYTES = 64 * 2**20


@contextmanager
def started(
    tmp_path: Path, *arguments: str, memory: str = "1g", fault: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """A run in tmp_path / "run", with a /dev/shm of its own where that can be; none of its processes and none of its memory stays behind."""
    command = [*PROGRAM, *arguments, "--out", str(tmp_path / "run")]
    has_own = may_mount()
    if has_own:
        command = with_own_memory(memory, *command)
    # Too long for the path of a socket.
    temporary = tmp_path / ("temporary-" * 10)
    temporary.mkdir()
    environment = {**os.environ, "FAULT": fault, "TMPDIR": str(temporary)}
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        )
        stack.callback(process.kill)
        names = stack.enter_context(memory_of(process.pid)) if has_own else None
        yield process
        assert process.poll() is not None
        if names is not None:
            assert names() == []
        # PyTorch makes a folder of its own.
        assert [path for path in temporary.rglob("*") if not path.name.startswith("torchinductor")] == []


def wait_for_end(pids: list[int]) -> None:
    """Wait until processes have ended; one ends with another one a moment later."""
    ends_s = time.monotonic() + 30
    while any(map(is_running, pids)):
        assert time.monotonic() < ends_s
        time.sleep(0.05)


@pytest.mark.thorough
def test_an_accelerator_that_runs_out_of_memory_is_named_and_the_others_go_on(
    tmp_path: Path, invoke: Invoke
) -> None:
    folder, devices = tmp_path / "run", "host:1,accelerator:1,accelerator:1"
    with memory_group(MEMORY_BYTES) as group:
        with started(tmp_path, *TRAIN, *OF_LAYER, "--devices", devices, fault="memory") as process:
            wait_for_epochs(folder, 1, process)
            accelerators = spawned_by(process.pid)
            (group / "cgroup.procs").write_text(str(accelerators[0]))
            out, err = process.communicate(timeout=DEADLINE_S)
            wait_for_end(accelerators)
        assert "oom_kill 1" in (group / "memory.oom_control").read_text()
    assert (process.returncode, out) == (2, "")
    found = re.search(
        r"Error: trainer 'accelerator\d' is gone: ended by SIGKILL while propagating epoch (\d+), batch \d", err
    )
    assert found is not None, err
    assert "SIGKILL often means that memory ran out" in err
    assert "Traceback" not in err
    assert "leaked" not in err
    done = len(lines_of(folder))
    assert done == int(found[1]) - 1
    for devices, trainers in (("host:1,accelerator:1", 2), ("none", 0)):
        done += 1
        left = ("--model", FAULTY, "--devices", devices, "--epochs", done)
        resumed = invoke("train", "--resume", "--out", folder, *left)
        assert resumed.code == 0, resumed.err
        lines = lines_of(folder)
        assert len(lines) == done
        assert len(lines[-1].get("trainers", [])) == trainers


@pytest.mark.parametrize("is_stopped", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_an_accelerator_ends_with_a_parent_that_is_killed_and_leaves_no_memory(
    tmp_path: Path, is_stopped: bool
) -> None:
    options = ("--model", "sage", "--devices", "host:1,accelerator:1")
    with started(tmp_path, *TRAIN, *options) as process:
        wait_for_epochs(tmp_path / "run", 1, process)
        accelerators = spawned_by(process.pid)
        assert len(accelerators) == 1
        if is_stopped:
            os.kill(accelerators[0], signal.SIGSTOP)
        process.kill()
        process.communicate()
        wait_for_end(accelerators)

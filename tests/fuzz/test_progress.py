"""A process that waits for its turn gets on; one that sleeps does not."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz.progress import Progress
from tests.fuzz.runner import TimeIsUpError, limited
from tests.fuzz.target import _hangs

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's account of processes")


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that says that it begins."""
    command = [sys.executable, "-c", f"import sys, time\nprint('begun', flush=True)\n{program}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def is_made_within_a_second(progress: Progress) -> bool:
    progress.is_made()
    time.sleep(1)
    return progress.is_made()


@pytest.mark.parametrize(("program", "expected"), [("time.sleep(60)", False), ("while True: pass", True)])
def test_a_process_that_sleeps_makes_no_progress(program: str, expected: bool) -> None:
    with running(program) as process:
        time.sleep(0.2)
        assert is_made_within_a_second(Progress(process.pid)) is expected


def test_a_process_that_is_not_let_would_go_on() -> None:
    with running("while True: pass") as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        progress = Progress(process.pid)
        before_s = progress.used_s
        assert is_made_within_a_second(progress)
        assert progress.used_s == before_s


def test_a_process_that_has_ended_makes_none() -> None:
    with running("") as process:
        process.wait()
        assert not is_made_within_a_second(Progress(process.pid))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("time.sleep(60)", "no end: it has slept for 2 s"),
        ("while True: pass", "no end after 1 s of the processor"),
        ("time.sleep(1.5); print(1)", ""),
        ("", ""),
    ],
)
def test_a_process_that_hangs_is_told_from_one_that_answers(program: str, expected: str) -> None:
    with running(program) as process:
        assert _hangs(process, most_s=1, asleep_s=2) == expected


def test_a_command_has_so_many_seconds_of_the_processor() -> None:
    with limited(0.2):
        time.sleep(0.5)
    with pytest.raises(TimeIsUpError), limited(0.2):
        any(False for _ in itertools.count())

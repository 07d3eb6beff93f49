"""Forks beside other threads are refused, and programs get their limits before they begin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import run_fresh, with_files_of

FORKS = """
import os, threading
from tests.forks import fork

def ends():
    child = fork({})
    if not child:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux's list of threads")
def test_a_process_forks_only_with_the_threads_that_it_names() -> None:
    beside = "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    run_fresh(FORKS.format("") + "assert ends() == 7")
    run_fresh(FORKS.format("idle=1") + beside + "assert ends() == 7")
    with pytest.raises(AssertionError, match="a process with 2 threads may not fork"):
        run_fresh(FORKS.format("") + beside + "ends()")


def test_a_program_may_be_kept_from_writing_large_files(tmp_path: Path) -> None:
    program = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_bytes(bytes(int(sys.argv[2])))"
    command = [*with_files_of(1024), sys.executable, "-c", program, str(tmp_path / "file")]
    for num_bytes, code in ((1024, 0), (1025, 1)):
        assert subprocess.run([*command, str(num_bytes)], capture_output=True, check=False).returncode == code

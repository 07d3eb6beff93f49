"""Forks beside other threads are refused, and programs get their limits before they begin."""

from __future__ import annotations

import os

import pytest

from tests.forks import run_fresh

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

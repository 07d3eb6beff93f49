"""Launching kernels on several threads."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

INTERRUPTED = """
import ctypes, signal, sys, threading, time
from sagann.kernels.edge.cpu import launch

called, done = threading.Event(), []
caller = threading.main_thread()

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def kernel(args):
    if threading.current_thread() is caller:
        called.set()
        return
    called.wait()
    # What is raised in here is lost.
    while sys._current_frames()[caller.ident].f_code.co_name == "kernel":
        time.sleep(0.01)
    for _ in range(3):
        time.sleep(0.1)
        signal.pthread_kill(caller.ident, signal.SIGINT)
    time.sleep(0.2)
    done.append(args)

try:
    launch._on_python_threads(ctypes.cast(kernel, ctypes.c_void_p).value, 7, 2)
except KeyboardInterrupt:
    print("interrupted", done, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="the system signals no single thread")
def test_an_interrupt_waits_for_the_threads_that_still_use_the_arrays() -> None:
    program = [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=240)
    assert (ended.stdout, ended.stderr) == ("interrupted [7]\n", "")

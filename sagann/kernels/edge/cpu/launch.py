"""Run a compiled kernel on several threads.

A kernel is a C function that takes one pointer, to its arguments; its threads share out the work items by a counter
among them. The threads are those of PyTorch's own OpenMP runtime where that is to be found, so that there is one
pool, not two that keep each other from the cores; elsewhere they are Python threads. Both may be entered by several
Python threads at once, and the global lock is free meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path

import numpy as np
import torch

Launcher = Callable[[int, int, int], None]
"Runs (function address, argument address, number of threads)."


@cache
def launcher() -> tuple[str, Launcher]:
    """The name and the function of what runs kernels here."""
    found = sorted(Path(torch.__file__).parent.glob("lib/libgomp*.so*"))
    if found:
        # Loaded already by torch: this only asks for the handle.
        parallel = ctypes.CDLL(str(found[0])).GOMP_parallel
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return "OpenMP threads of PyTorch", lambda function, args, threads: parallel(function, args, threads, 0)
    return "Python threads", _on_python_threads


_Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _on_python_threads(function: int, args: int, threads: int) -> None:
    kernel = _Kernel(function)
    others: list[Future[None]] = []
    try:
        others.extend(_pool().submit(kernel, args) for _ in range(threads - 1))
        kernel(args)
    finally:
        _wait_for(others)
    for other in others:
        other.result()


def _wait_for(others: Sequence[Future[None]]) -> None:
    """Wait until the threads use the arguments no more. An interrupt is raised then, for it would free the arrays."""
    try:
        wait(others)
    except BaseException:
        _wait_for(others)
        raise


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(1, torch.get_num_threads() - 1), thread_name_prefix="sagann-kernel")


def launch(function: int, args: Sequence[int], *, num_items: int) -> None:
    """Run the kernel at address ``function`` until every item is done.

    Args:
        function: address of a C function of one pointer, to a counter's address and the arguments, int64.
        args: numbers and addresses that follow the counter's.
        num_items: work items; one is done on the calling thread alone.
    """
    counter = np.zeros(1, np.int64)
    packed = np.array([counter.ctypes.data, *args], np.int64)
    threads = min(torch.get_num_threads(), num_items)
    if threads <= 1:
        _Kernel(function)(packed.ctypes.data)
        return
    launcher()[1](function, packed.ctypes.data, threads)

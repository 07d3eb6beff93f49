"""Compile the source of a kernel, and run the kernel on several threads.

Numba compiles a generated source once per machine, and keeps the machine code beside the source. A kernel is a C function of
one pointer, to its arguments. Its threads claim work items from a counter among the arguments. The threads are those of
PyTorch's OpenMP runtime where the runtime is found, so that two pools do not compete for the cores. Else they are Python threads.
Several Python threads may launch kernels at once, and kernels run without the global lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path

import llvmlite
import numba
import numpy as np
import torch

from sagann import jit
from sagann.kernels.edge.source import import_source, library_hash
from sagann.processes import require_own_threads

_SHARED = Path(__file__).parents[1]
LIBRARY = (
    *(Path(__file__).with_name(f"{name}.py") for name in ("block", "elementwise", "shuffle")),
    *(_SHARED / f"{name}.py" for name in ("function", "random", "reductions")),
    Path(jit.__file__),
)
"""The modules that a generated source imports, and those of edge functions that these import. A change of any other module that
changes what a kernel does changes the kernel's source."""
Launcher = Callable[[int, int, int], None]
"Runs (function address, argument address, number of threads)."


def compile_source(source: str) -> int:
    """The address of the C function ``kernel`` of a generated source.

    Machine code stays in memory until the process ends, so a process loads it once, whatever functions and models it is for.
    """
    versions = f"numba {numba.__version__}, llvmlite {llvmlite.__version__}"
    return loaded(source, library_hash(versions, *LIBRARY))


@cache
def loaded(source: str, library: str) -> int:
    """The address of a source's kernel for one version of the library: compiled, or found in the cache folder."""
    return int(import_source(source, library).kernel.address)


@cache
def launcher() -> tuple[str, Launcher]:
    """Name and function of the launcher on this machine."""
    found = sorted(Path(torch.__file__).parent.glob("lib/libgomp*.so*"))
    if found:
        # torch has loaded the library already.
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
    """Wait until no thread uses the arguments. An interrupt is raised only then, because it would free the arrays."""
    try:
        wait(others)
    except BaseException:
        _wait_for(others)
        raise


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(1, torch.get_num_threads() - 1), thread_name_prefix="sagann-kernel")


def launch(function: int, args: Sequence[int], *, num_items: int) -> None:
    """Run the kernel at address ``function`` until every item is done. A single item runs on the calling thread.

    The kernel gets a pointer to int64: the address of the counter, and ``args``, numbers and addresses.
    """
    packed = np.array([0, 0, *args], np.int64)
    # The counter comes first.
    packed[1] = counter = packed.ctypes.data
    threads = min(torch.get_num_threads(), num_items)
    if threads <= 1:
        _Kernel(function)(counter + packed.itemsize)
        return
    require_own_threads()
    launcher()[1](function, counter + packed.itemsize, threads)

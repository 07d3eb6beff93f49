"""Threads whose operators run on one core: they work beside a training step, which has the others.

PyTorch shares a large operator among OpenMP threads. Each thread that calls operators has a team of its own, so a thread that loads
features would take the cores from the step. The size of the team is a property of the calling thread in OpenMP; ``torch.set_num_threads``
would also change the number of MKL's threads, which all threads of the process share.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch


def work_serially() -> None:
    """From now on, operators that this thread calls run on this thread alone. Other threads keep their number of threads."""
    # PyTorch sets the number of a new thread when it is first asked for.
    torch.get_num_threads()
    openmp = _openmp()
    if openmp is not None:
        openmp.omp_set_num_threads(1)


@cache
def _openmp() -> Any:
    """The OpenMP library of PyTorch; None where it is not found: operators then have the threads that PyTorch gives them."""
    found = sorted(Path(torch.__file__).parent.glob("lib/libgomp*.so*"))
    # PyTorch has loaded the library already.
    return ctypes.CDLL(str(found[0])) if found else None

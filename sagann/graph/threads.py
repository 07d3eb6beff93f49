"""Give Numba the number of threads that PyTorch has, and keep PyTorch's number.

Both runtimes are OpenMP. If they share a symbol, setting Numba's number of threads also sets PyTorch's, without a
warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch

from sagann.errors import InputError, first_line
from sagann.ranges import RANGES


@contextmanager
def pytorch_threads() -> Iterator[int]:
    """Run Numba's parallel loops on as many threads as PyTorch uses; yields the number of threads.

    Raises:
        InputError: a variable of the environment keeps Numba from starting its threads.
    """
    threads, most = torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    if most not in RANGES["threads"]:
        raise _refused(f"NUMBA_NUM_THREADS is {most}, expected {RANGES['threads']}")
    try:
        numba.set_num_threads(min(threads, most))
    except ValueError as error:
        raise _refused(first_line(error)) from error
    try:
        yield numba.get_num_threads()
    finally:
        torch.set_num_threads(threads)


def _refused(value: str) -> InputError:
    return InputError(
        "Numba cannot start its threads",
        value=value,
        where="the environment",
        fix="Unset NUMBA_NUM_THREADS and NUMBA_THREADING_LAYER, or correct them.",
    )

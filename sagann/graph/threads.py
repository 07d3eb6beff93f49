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
from sagann.processes import require_own_threads


@contextmanager
def pytorch_threads() -> Iterator[int]:
    """Run Numba's parallel loops on as many threads as PyTorch uses; yields the number of threads.

    Raises:
        InputError: a variable of the environment keeps Numba from starting its threads.
    """
    require_own_threads()
    threads = torch.get_num_threads()
    try:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    except ValueError as error:
        raise InputError(
            f"Numba cannot start its threads: {first_line(error)} (in the environment)",
            hint="Unset NUMBA_NUM_THREADS and NUMBA_THREADING_LAYER, or correct them.",
        ) from error
    try:
        yield numba.get_num_threads()
    finally:
        torch.set_num_threads(threads)

"""As many Numba threads as PyTorch has, and PyTorch's number left alone.

Both runtimes are OpenMP, and where they share a symbol, Numba's number of threads silently becomes PyTorch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch


@contextmanager
def pytorch_threads() -> Iterator[int]:
    """Run Numba's parallel loops on as many threads as PyTorch uses; gives that number."""
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    try:
        yield numba.get_num_threads()
    finally:
        torch.set_num_threads(threads)

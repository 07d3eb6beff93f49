"""As many Numba threads as PyTorch has, without a change of PyTorch's number.

Both runtimes are OpenMP. If they share a symbol, setting Numba's number of threads silently sets PyTorch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch


@contextmanager
def pytorch_threads() -> Iterator[int]:
    """Run Numba's parallel loops on as many threads as PyTorch uses; yields their number."""
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    try:
        yield numba.get_num_threads()
    finally:
        torch.set_num_threads(threads)

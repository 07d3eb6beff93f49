"""What tests of CUDA devices share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NO_TRITON = "triton is not installed: pip install sagann[cuda]"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")
on_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@contextmanager
def waits_refused() -> Iterator[None]:
    """Inside the ``with`` block, an operator that makes the host wait for the device is an error."""
    try:
        with warnings.catch_warnings():
            # PyTorch says once per process that this is a prototype.
            warnings.filterwarnings("ignore", message="Synchronization debug mode", category=UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def most_requested_bytes() -> int:
    """Most bytes of the device's memory that tensors have asked for at once since ``torch.cuda.reset_peak_memory_stats()``.

    PyTorch's allocator gives up to a mebibyte more to a tensor of more than a mebibyte, rather than split a piece of memory.
    """
    return int(torch.cuda.memory_stats()["requested_bytes.all.peak"])


def requested_bytes() -> int:
    """Bytes of the device's memory that tensors have asked for."""
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])

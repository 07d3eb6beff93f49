"""What tests of CUDA devices share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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

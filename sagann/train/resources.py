"""The resources of a run: device, reproducible operators, peak memory, versions."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils.deterministic

import sagann
from sagann.runtime.places import device_named

# Typed by hand: the stubs do not know the properties of this module.
_deterministic: Any = torch.utils.deterministic


def resolve_device(name: str) -> torch.device:
    """The device that 'cpu', 'cuda', 'cuda:N' or 'auto' names, with its index; an InputError where it is missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and torch.cuda.device_count() else "cpu"
    return device_named(name, where="TrainConfig.device")


@contextmanager
def reproducible(enabled: bool, device: torch.device) -> Iterator[None]:
    """Inside the block, PyTorch allows only operators that give the same bits in every run on ``device``."""
    if not enabled:
        yield
        return
    if device.type == "cuda":
        # cuBLAS is reproducible with a workspace of fixed size only, and torch insists on this variable.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = _deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # Filling every new tensor with NaN is a debugging aid that costs a pass over memory.
    _deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        _deterministic.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(before, warn_only=warned_only)


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    # getrusage also counts the program that the process ran before this one.
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def versions() -> dict[str, Any]:
    """Versions that the bits of a run depend on, and the number of threads."""
    return {
        "sagann": sagann.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }

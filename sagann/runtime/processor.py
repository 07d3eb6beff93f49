"""Facts of the processor that runs this process, from the system's files on Linux and from Python elsewhere."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

DEFAULT_CACHE_BYTES = 32 << 20
"Size of the last-level cache where the system does not tell it, in bytes."
_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SIZE = re.compile(r"(\d+)([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# From the widest to the narrowest, with the flags that the system lists for each.
_VECTORS = {"AVX-512": {"avx512f"}, "AVX2": {"avx2", "fma"}}


def processor_name() -> str:
    """The processor's name, or its architecture where it has no name, with its vector instructions: "AMD EPYC (AVX2)".

    A virtual machine may show one name for processors of several generations, whose speeds differ.
    """
    name = _fact("model name") or platform.processor() or platform.machine() or "unknown"
    vectors = vector_instructions()
    return name if vectors is None else f"{name} ({vectors})"


def vector_instructions() -> str | None:
    """The widest vector instructions of the processor: "AVX-512", or "AVX2" (with FMA). None: it has neither, or the system does not tell."""
    flags = set((_fact("flags") or "").split())
    return next((name for name, needed in _VECTORS.items() if needed <= flags), None)


def num_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_bytes() -> int:
    """Size of the last-level cache of the first core, in bytes; :data:`DEFAULT_CACHE_BYTES` where it is unknown."""
    _, size = max(_levels(), default=(0, 0))
    return size or DEFAULT_CACHE_BYTES


def _fact(name: str) -> str | None:
    """A fact of the first core from the system's file; None where the file lacks it."""
    with suppress(OSError):
        for line in _CPUINFO.read_text(errors="replace").splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return None


def _levels() -> Iterator[tuple[int, int]]:
    """Level and bytes of each cache."""
    for cache in _CACHES.glob("index*"):
        # A virtual machine may show a cache without its level or its size.
        with suppress(OSError, ValueError):
            size = _SIZE.fullmatch((cache / "size").read_text().strip())
            if size is not None:
                yield int((cache / "level").read_text()), int(size[1]) * _UNITS[size[2]]

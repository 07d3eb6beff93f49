"""Facts of the processor that this process runs on. Read from the system's files on Linux, else as Python knows them."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

DEFAULT_CACHE_BYTES = 32 << 20
"The last-level cache where the system does not tell it."
_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SIZE = re.compile(r"(\d+)([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """What the processor calls itself; where it has no name, its architecture.

    Args:
        cpuinfo: the system's description; another file only in tests.
    """
    with suppress(OSError):
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"


def num_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_bytes(caches: Path = _CACHES) -> int:
    """Size of the cache nearest to memory, as the first core sees it; :data:`DEFAULT_CACHE_BYTES` where it is unknown.

    Args:
        caches: the system's folder of caches; another one only in tests.
    """
    _, size = max(_levels(caches), default=(0, 0))
    return size or DEFAULT_CACHE_BYTES


def _levels(caches: Path) -> Iterator[tuple[int, int]]:
    """(level, bytes) of every cache."""
    for cache in caches.glob("index*"):
        # A virtual machine may show a cache without telling all of it.
        with suppress(OSError, ValueError):
            size = _SIZE.fullmatch((cache / "size").read_text().strip())
            if size is not None:
                yield int((cache / "level").read_text()), int(size[1]) * _UNITS[size[2]]

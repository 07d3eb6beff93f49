"""Memory and disk space that this process may use, within the limits of its container (cgroups).

The values are read from the system's files on Linux; elsewhere an unknown value is None.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sagann.byte_size import format_bytes
from sagann.errors import InputError

_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
# cgroup v1 writes "no limit" as the largest multiple of a page.
_UNLIMITED_BYTES = 2**62


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory of the machine, in bytes."""

    total_bytes: int | None
    "Total memory of the machine in bytes; None where unknown."
    available_bytes: int | None
    "Memory in bytes that a new program could take without swapping; None where unknown."
    limit_bytes: int | None
    "Tightest memory limit of a cgroup on this process, in bytes; None without a limit."
    limit_used_bytes: int | None
    "Memory in bytes that all processes under that limit use, without the page cache; None without a limit."

    @property
    def usable_bytes(self) -> int | None:
        """Memory in bytes that this process may still take."""
        bounds = [self.available_bytes]
        if self.limit_bytes is not None:
            bounds.append(max(0, self.limit_bytes - (self.limit_used_bytes or 0)))
        known = [bound for bound in bounds if bound is not None]
        return min(known) if known else None


def memory() -> Memory:
    """Measure the memory."""
    found = _meminfo()
    limits = [pair for folder in _memory_cgroups() if (pair := _limit_of(folder)) is not None]
    # The limit that leaves the least room is reached first.
    limit, used = min(limits, key=lambda pair: pair[0] - pair[1], default=(None, None))
    return Memory(
        total_bytes=found.get("MemTotal"),
        available_bytes=found.get("MemAvailable"),
        limit_bytes=limit,
        limit_used_bytes=used,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """One kind of memory, and how much of it this process may take."""

    name: str
    "How messages name it: 'memory', or 'the memory of cuda:0'."
    total_bytes: int | None
    "Bytes of memory that this process may have at most; None where unknown."
    free_bytes: int | None
    "Bytes of memory that this process may still take; None where unknown."

    def require(self, needed_bytes: int, *, where: str, hint: str) -> None:
        """Refuse work that needs more than is free."""
        if self.free_bytes is not None and needed_bytes > self.free_bytes:
            raise InputError(
                f"the work does not fit {self.name}: at least {format_bytes(needed_bytes)} are needed, "
                f"{format_bytes(self.free_bytes)} are free (in {where})",
                hint=hint,
            )


def host_room() -> Room:
    """The memory of this machine."""
    found = memory()
    known = [bound for bound in (found.total_bytes, found.limit_bytes) if bound is not None]
    return Room(name="memory", total_bytes=min(known, default=None), free_bytes=found.usable_bytes)


def require_memory(needed_bytes: int, *, where: str, hint: str) -> None:
    """Refuse work that needs more memory than this process may still take: the system would kill it without a message."""
    host_room().require(needed_bytes, where=where, hint=hint)


def free_disk_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder that need not exist yet."""
    return shutil.disk_usage(nearest_folder(folder)).free


def disk_of(folder: Path) -> str:
    """A text that is the same for folders on one disk of one running machine, in any of its processes; folders need not exist yet."""
    machine = _text(_PROC / "sys" / "kernel" / "random" / "boot_id").strip() or platform.node()
    return f"{machine} {nearest_folder(folder).stat().st_dev}"


def nearest_folder(folder: Path) -> Path:
    """The folder itself, or else its nearest parent that exists."""
    while not folder.exists():
        folder = folder.parent
    return folder


def is_memory(folder: Path) -> bool:
    """Whether files in a folder, or in its nearest parent that exists, stay in memory (tmpfs, ramfs)."""
    mounts = _PROC / "self" / "mountinfo"
    if not mounts.is_file():
        return False
    found = folder.resolve()
    kinds = {}
    for line in mounts.read_bytes().splitlines():
        # "36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw": of mounts in one place, the last one counts.
        before, _, after = line.partition(b" - ")
        point = re.sub(rb"\\(\d{3})", lambda match: bytes([int(match[1], 8)]), before.split()[4])
        kinds[Path(os.fsdecode(point))] = after.split()[0]
    nearest = next((kinds[above] for above in (found, *found.parents) if above in kinds), b"")
    return nearest in (b"tmpfs", b"ramfs")


def _meminfo() -> dict[str, int]:
    lines = (line.split() for line in _text(_PROC / "meminfo").splitlines())
    # "MemTotal:  16316412 kB"
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def _memory_cgroups() -> Iterator[Path]:
    """The cgroup of this process and those above it, in either version, as far as they are to be seen here."""
    for line in _text(_PROC / "self" / "cgroup").splitlines():
        _, controllers, inside = line.split(":", 2)
        if controllers == "":
            mounts = [_CGROUPS, _CGROUPS / "unified"]
        elif "memory" in controllers.split(","):
            mounts = [_CGROUPS / "memory"]
        else:
            continue
        for mount in mounts:
            # In a container the path may be the host's, and only the mount itself is there.
            folder = mount / inside.lstrip("/")
            while folder.is_relative_to(mount):
                yield folder
                folder = folder.parent


def _limit_of(folder: Path) -> tuple[int, int] | None:
    """The limit of a cgroup and what is used of it, without the page cache, in bytes; None without a limit."""
    names = (
        ("memory.max", "memory.current", ("inactive_file", "active_file")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    )
    for limit_name, usage_name, cache_names in names:
        limit = _number(folder / limit_name)
        if limit is not None and limit < _UNLIMITED_BYTES:
            entries = map(str.split, _text(folder / "memory.stat").splitlines())
            cache = sum(int(count) for name, count in entries if name in cache_names)
            return limit, max(0, (_number(folder / usage_name) or 0) - cache)
    return None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    """A file's text; empty where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""

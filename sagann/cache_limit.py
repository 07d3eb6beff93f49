"""The limit of the cache folder: what was not used for longest is removed when a process that has added files ends.

Every file below the folder can be made again: a process that misses one compiles it. So any process may remove any file at any time, without
a lock. A file that was used within the last hour stays, so that processes which run side by side do not take each other's kernels.
"""

from __future__ import annotations

import atexit
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

LIMIT_BYTES = 1 << 30
"Bytes of files above which the least recently used ones are removed."
KEPT_S = 3600.0
"Seconds after its last use for which a file is never removed."
# Room for new files, so that not every process has files to remove.
_LEFT_SHARE = 0.75


class _File(NamedTuple):
    """A file or folder below the cache folder."""

    path: str
    used_s: float
    num_bytes: int


def mark_used(path: Path) -> None:
    """Note that a file is used now: file systems may write down a time of access late or never. The time of change stays.

    Numba compares the time of change of a source with the one that its machine code was compiled from.
    """
    with suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


@cache
def limit_at_exit(folder: Path) -> None:
    """Have this process keep the folder below its limit when it ends; for a folder that gets a new file."""
    atexit.register(_limit_if_owner, folder, os.getpid())


def limit_folder(
    folder: Path, *, limit_bytes: int = LIMIT_BYTES, kept_s: float = KEPT_S, now_s: float | None = None
) -> None:
    """Remove the least recently used files below a folder where it has more than ``limit_bytes``, and folders that have long been empty.

    Args:
        folder: whose files can be made again. Links are not followed.
        limit_bytes: bytes of all files that may stay.
        kept_s: seconds after its last use for which a file stays in any case.
        now_s: the time now, in seconds since 1970; None for that of the clock.
    """
    before_s = (time.time() if now_s is None else now_s) - kept_s
    files, folders = list[_File](), list[_File]()
    for inner in _below(folder):
        (folders if inner.num_bytes < 0 else files).append(inner)
    num_bytes = sum(each.num_bytes for each in files)
    if num_bytes > limit_bytes:
        for each in sorted(files, key=lambda each: each.used_s):
            if num_bytes <= _LEFT_SHARE * limit_bytes or each.used_s > before_s:
                break
            with suppress(OSError):
                os.unlink(each.path)
            num_bytes -= each.num_bytes
    for each in reversed(folders):
        if each.used_s <= before_s:
            # A folder with files is not removed.
            with suppress(OSError):
                os.rmdir(each.path)


def _below(folder: Path) -> Iterator[_File]:
    """The regular files and the folders below a folder, a folder before what is in it; a folder has -1 bytes."""
    for path, inner, names in os.walk(folder):
        for name in (*inner, *names):
            whole = os.path.join(path, name)
            # Other processes remove files, too.
            with suppress(OSError):
                state = os.lstat(whole)
                if stat.S_ISDIR(state.st_mode):
                    yield _File(whole, state.st_mtime, -1)
                elif stat.S_ISREG(state.st_mode):
                    yield _File(whole, max(state.st_atime, state.st_mtime), state.st_size)


def _limit_if_owner(folder: Path, owner: int) -> None:
    # A forked child leaves it to the process that it comes from.
    if os.getpid() == owner:
        limit_folder(folder)

"""The limit of the cache folder: what was not used for longest is removed when a process that has added files ends.

Every file below the folder can be made again: a process that misses one compiles it. So any process may remove any file at any time, without
a lock. A file that was used within the last day stays, so that processes which run side by side do not take each other's kernels.

Triton keeps a kernel as several files of one folder, and looks for the file of the group alone: a group whose other files are missing is an
error for ever. So such a folder is removed as a whole, the file of the group first.
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
KEPT_S = 86400.0
"Seconds after its last use for which a file is never removed. Many file systems write down the time of an access once a day only."
# Room for new files, so that not every process has files to remove.
_LEFT_SHARE = 0.75
_GROUP = "__grp__"
"Begin of the name of the file in which Triton lists the other files of a kernel."


class _Unit(NamedTuple):
    """Files below the cache folder that are removed together, in this order: a single one, or those of a kernel of Triton."""

    paths: list[str]
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
    """Remove the least recently used files below a folder where it has more than ``limit_bytes``, and folders that have been empty for ``kept_s``.

    Args:
        folder: whose files can be made again. Links are not followed.
        limit_bytes: bytes of all files that may stay.
        kept_s: seconds after its last use for which a file stays in any case, and an empty folder after its last change.
        now_s: the time now, in seconds since 1970; None for that of the clock.
    """
    before_s = (time.time() if now_s is None else now_s) - kept_s
    units, folders = list[_Unit](), list[str]()
    for path, inner, names in os.walk(folder):
        units += _units(path, names)
        folders += (os.path.join(path, name) for name in inner)
    num_bytes = sum(each.num_bytes for each in units)
    if num_bytes > limit_bytes:
        for each in sorted(units, key=lambda each: each.used_s):
            if num_bytes <= _LEFT_SHARE * limit_bytes or each.used_s > before_s:
                break
            with suppress(OSError):
                for path in each.paths:
                    # Other processes remove files, too.
                    Path(path).unlink(missing_ok=True)
                num_bytes -= each.num_bytes
    for path in reversed(folders):
        # A folder with files is not removed. Removing a file changes the time of its folder, which so stays for another process that adds to it.
        with suppress(OSError):
            if os.lstat(path).st_mtime <= before_s:
                os.rmdir(path)


def _units(folder: str, names: list[str]) -> Iterator[_Unit]:
    """The regular files of a folder, each alone, or all as one unit where Triton keeps a kernel in the folder."""
    files = list[_Unit]()
    # Files of groups come first.
    for name in sorted(names, key=lambda name: not name.startswith(_GROUP)):
        path = os.path.join(folder, name)
        with suppress(OSError):
            state = os.lstat(path)
            if stat.S_ISREG(state.st_mode):
                files.append(_Unit([path], max(state.st_atime, state.st_mtime), state.st_size))
    if any(name.startswith(_GROUP) for name in names):
        paths = [path for each in files for path in each.paths]
        yield _Unit(paths, max((each.used_s for each in files), default=0), sum(each.num_bytes for each in files))
    else:
        yield from files


def _limit_if_owner(folder: Path, owner: int) -> None:
    # A forked child leaves it to the process that it comes from.
    if os.getpid() == owner:
        limit_folder(folder)

"""Disk probe: how fast one thread writes and reads a file by positions, as for spilled blocks."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from sagann.byte_size import with_exact
from sagann.errors import InputError
from sagann.plan.machine import Disk
from sagann.storage.positioned import read_bytes, write_bytes

FILE_BYTES = 256 << 20
"Size of the file, in bytes. The file is smaller if the disk has room for less than twice as much."
LEAST_BYTES = 64 << 20
"Least size of the file, in bytes. A smaller file measures the disk's own caches rather than the disk."
_PIECE_BYTES = 8 << 20
_NUM_ROUNDS = 3
# No round begins later.
_LONGEST_S = 4.0


def disk_rates(folder: Path) -> Disk:
    """Measure the disk that holds ``folder``. No file stays there, even if the process is killed.

    The rates are medians of a few rounds. Each round writes the file, syncs it, makes the page cache drop it, and reads it
    twice. A first round makes the file and does not count, unless the disk is too slow for another round. If the folder lies
    in memory (tmpfs), or on a virtual disk that its host caches, the rates are those of memory or of that cache.

    Args:
        folder: an existing folder.
    Raises:
        InputError: the folder is missing, cannot be written, or has room for less than :data:`LEAST_BYTES`.
    """
    try:
        num_bytes = _file_bytes(shutil.disk_usage(folder).free, folder)
        # If the system can, the file has no name and ends with the process.
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return _measured(file.fileno(), num_bytes)
    except OSError as error:
        raise InputError(
            f"the disk cannot be measured: {error.strerror or str(error)} (in '{folder}')",
            hint="Name a folder that exists, on a disk with room, and that you may write to.",
        ) from error


def _file_bytes(free_bytes: int, folder: Path) -> int:
    if free_bytes < LEAST_BYTES:
        raise InputError(
            f"too little room to measure the disk: {with_exact(free_bytes)} are free, "
            f"{with_exact(LEAST_BYTES)} are needed (in '{folder}')",
            hint="Free some, or name a folder on another disk.",
        )
    # A nearly full disk is slow for every process that writes to it.
    wanted = min(FILE_BYTES, max(LEAST_BYTES, free_bytes // 2))
    return wanted // _PIECE_BYTES * _PIECE_BYTES


def _measured(file: int, num_bytes: int) -> Disk:
    # Random bytes, because some file systems store zeros and repetitions in no space and no time.
    piece = memoryview(np.random.default_rng(0).integers(0, 256, _PIECE_BYTES, np.uint8).data)
    # Memory as large as the file, because a few pieces that are reused would stay in the processor's cache.
    into = memoryview(bytearray(num_bytes))
    rounds: list[tuple[float, float, float]] = []
    began_s = time.perf_counter()
    while len(rounds) <= _NUM_ROUNDS and (not rounds or time.perf_counter() - began_s < _LONGEST_S):
        write_s = _seconds(lambda: _write(file, piece, num_bytes))
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, num_bytes, os.POSIX_FADV_DONTNEED)
        read_s = _seconds(lambda: _read(file, num_bytes, into[:_PIECE_BYTES]))
        rounds.append((read_s, _seconds(lambda: _read(file, num_bytes, into)), write_s))
    read, cached, write = (num_bytes / median(seconds) for seconds in zip(*(rounds[1:] or rounds), strict=True))
    return Disk(read_bytes_per_s=read, cached_bytes_per_s=cached, write_bytes_per_s=write)


def _seconds(run: Callable[[], None]) -> float:
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def _write(file: int, piece: memoryview, num_bytes: int) -> None:
    for begin in range(0, num_bytes, len(piece)):
        write_bytes(file, piece, begin)
    os.fsync(file)


def _read(file: int, num_bytes: int, into: memoryview) -> None:
    """Read piece by piece into ``into``, which begins anew at its end."""
    for offset in range(0, num_bytes, _PIECE_BYTES):
        at = offset % len(into)
        read_bytes(file, into[at : at + _PIECE_BYTES], offset)

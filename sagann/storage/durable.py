"""Files that are whole or absent: written under another name, synced to the disk, then renamed."""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of the name of an unfinished file."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: if the process dies, a reader sees the old file or the new one."""
    aside = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    try:
        # Where a link stands there, what it leads to is not written to.
        aside.unlink(missing_ok=True)
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        # The system does not name an open file in its errors.
        error.filename = error.filename or str(aside)
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

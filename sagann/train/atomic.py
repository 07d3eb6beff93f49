"""Files that are whole or absent: written aside, synced, renamed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

TEMPORARY_PREFIX = ".tmp-"
"""Begins the name of everything that is not finished, or being removed."""


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; a reader sees the old file or the new one."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content``; a reader sees the old file or the new one."""
    aside = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    write_synced(aside, content)
    os.replace(aside, path)
    sync_folder(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write ``content`` and wait until it is on the disk; not atomic by itself."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_folder(path: Path) -> None:
    """Remove a folder so that at no instant a part of it stands under its name; one that is absent is fine."""
    aside = path.with_name(f"{TEMPORARY_PREFIX}removed-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if path.exists():
        path.rename(aside)
        shutil.rmtree(aside)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left unfinished in ``folder``."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

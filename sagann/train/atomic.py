"""Files of a run folder: whole or absent, also while they are written; with digests and explained errors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sagann.errors import CheckpointError
from sagann.storage.folder import TEMPORARY_PREFIX, write_whole


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; a reader sees the old file or the new one."""
    write_whole(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def new_digest(content: bytes = b"") -> Any:
    """BLAKE2b-128 of bytes, to which more may be added."""
    return hashlib.blake2b(content, digest_size=16)


def digest(content: bytes) -> str:
    """BLAKE2b-128, in hexadecimal."""
    found: str = new_digest(content).hexdigest()
    return found


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the run folder cannot be written: {error.strerror or str(error)} (in {error.filename or folder})",
            hint="Free some space or mend the permissions, then resume; files written before are whole.",
        ) from error


def leftovers(names: Iterable[str]) -> set[str]:
    """The names under which a killed process may leave files of ``names`` unfinished."""
    return {f"{TEMPORARY_PREFIX}{name}" for name in names}


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove the :func:`leftovers` of ``names`` from ``folder``."""
    for name in leftovers(names):
        (folder / name).unlink(missing_ok=True)

"""Files of a run folder: whole or absent, also while they are written; with digests and explained errors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from sagann.errors import CheckpointError
from sagann.storage.durable import TEMPORARY_PREFIX, sync_file, write_whole


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; a reader sees the old file or the new one."""
    write_whole(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors and wait until they are on the disk; not atomic by itself."""
    # Imported here: only runs with a folder need it.
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, path)
    except SafetensorError as error:
        raise OSError(None, str(error), str(path)) from error
    # safetensors makes files that only their owner may read, whatever the umask.
    path.chmod(mode)
    sync_file(path)


def parse_tensors(content: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file, copied from its content; a ValueError says that it is none.

    A mapped file could be cut or removed while its tensors are in use.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(str(error)) from error


def digest(content: bytes) -> str:
    """BLAKE2b-128, in hexadecimal."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def file_digest(path: Path) -> str:
    """The :func:`digest` of a file's content, which is read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


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

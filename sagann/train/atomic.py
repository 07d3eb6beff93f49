"""What a run folder is written with: JSON and tensors that are whole or absent, and what the disk refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from sagann.errors import CheckpointError
from sagann.storage.durable import TEMPORARY_PREFIX, sync_file, write_whole

REMOVED = "removed-"
"Begins, after the prefix of what is not finished, the name of what is being removed."


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; a reader sees the old file or the new one."""
    write_whole(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def parse_json(content: bytes) -> Any:
    """Parse JSON that may be damaged.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as safetensors and wait until they are on the disk; not atomic by itself."""
    # Imported here: only runs with a folder need it.
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, path, dict(metadata or {}) or None
        )
    except SafetensorError as error:
        raise OSError(None, str(error), str(path)) from error
    # safetensors makes files that only their owner may read, whatever the umask.
    path.chmod(mode)
    sync_file(path)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Say in four parts what the disk refuses inside the block.

    Raises:
        CheckpointError: a file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            "the run folder cannot be written",
            value=error.strerror or str(error),
            where=str(error.filename or folder),
            fix="Free some space or mend the permissions, then resume; what was written before is whole.",
        ) from error


def remove_folder(path: Path) -> None:
    """Remove a folder so that at no instant a part of it stands under its name; one that is absent is fine."""
    aside = path.with_name(f"{TEMPORARY_PREFIX}{REMOVED}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if path.exists():
        path.rename(aside)
        shutil.rmtree(aside)


def leftovers(names: Iterable[str]) -> set[str]:
    """What a killed process may leave unfinished of files and folders of these names."""
    return {f"{TEMPORARY_PREFIX}{part}{name}" for name in names for part in ("", REMOVED)}


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove from ``folder`` what a killed process left unfinished of files and folders of these names."""
    for name in leftovers(names):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

"""Files and dataset folders that appear whole or not at all: they are written under another name, synced to the disk, then renamed.

A dataset NAME is written into ``.NAME.partial/new`` beside its place, and renamed when it is complete. A dataset that it replaces is first
renamed to ``.NAME.partial/old``, and removed last. Whoever writes holds a lock, which the system releases when the process dies; then the next
one that writes or opens NAME puts an old dataset back, and removes what is left.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from sagann.errors import DatasetError

TEMPORARY_PREFIX = ".tmp-"
"Prefix of the name of an unfinished file."
MANIFEST_FILE = "manifest.json"
"The file that makes a folder a dataset; it is written last."
FORMAT = "sagann-graph"
"Value of ``format``, the first field of a manifest; it distinguishes manifests of sagann from files of other programs."


@contextmanager
def new_folder(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Make a partial folder to write into; rename it to ``path`` when the block ends, or remove it when the block fails.

    The caller syncs its files and writes the manifest last.
    """
    # A symbolic link stays; the folder behind the link is replaced.
    target = Path(os.path.realpath(path))
    partial = _partial(target)
    new = partial / "new"
    try:
        recover(target)
        _check_target(target, overwrite=overwrite)
        partial.mkdir(exist_ok=True)
        with FileLock(partial / "lock", timeout=0):
            try:
                _clean(target)
                new.mkdir()
                yield new
                _check_target(target, overwrite=overwrite)
                sync_folder(new)
                if target.exists():
                    target.rename(partial / "old")
                new.rename(target)
                sync_folder(target.parent)
            finally:
                _clean(target)
                shutil.rmtree(partial, ignore_errors=True)
    except Timeout as error:
        raise DatasetError(
            f"another process is writing the dataset: it holds {error.lock_file} (in {path})",
            hint="Wait for it, stop it, or choose another name.",
        ) from error
    except OSError as error:
        what, hint = "a file cannot be read or written", "Check that the file exists, and its permissions."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what, hint = "disk is full", "Free some space; nothing was left behind."
        problem = f"{error.strerror or str(error)} (in {error.filename or path})"
        raise DatasetError(f"{what}: {problem}", hint=hint) from error


def recover(path: Path) -> None:
    """Put a dataset back if a process died while it replaced the dataset."""
    if not path.exists() and (_partial(path) / "old").exists():
        # Another process may be replacing it now.
        with suppress(Timeout), FileLock(_partial(path) / "lock", timeout=0):
            _clean(path)


def _partial(path: Path) -> Path:
    """The hidden folder beside a dataset's place."""
    return path.parent / f".{path.name}.partial"


def _clean(path: Path) -> None:
    """Put an old dataset back where none has taken its place; remove what else is left."""
    old = _partial(path) / "old"
    if old.exists() and not path.exists():
        old.rename(path)
    for folder in (_partial(path) / "new", old):
        shutil.rmtree(folder, ignore_errors=True)


def is_dataset(folder: Path) -> bool:
    """Whether a folder holds a dataset, even a damaged one."""
    manifest = folder / MANIFEST_FILE
    if not manifest.is_file():
        return False
    with manifest.open("rb") as file:
        return f'"{FORMAT}"'.encode() in file.read(256)


def _check_target(path: Path, *, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise DatasetError(
            f"folder to write into does not exist: {path.parent} (in {path})",
            hint="Make it first, or choose another place.",
        )
    if not path.exists():
        return
    replaceable = is_dataset(path)
    if replaceable and not overwrite:
        raise DatasetError(
            f"a dataset stands there already: overwriting was not asked for (in {path})",
            hint="Choose another name, or pass overwrite=True (--overwrite) to replace it.",
        )
    if not replaceable and not (path.is_dir() and not any(path.iterdir())):
        raise DatasetError(
            f"what stands there is not a dataset of sagann: a {'folder' if path.is_dir() else 'file'} without "
            f"a {MANIFEST_FILE} of sagann (in {path})",
            hint="Choose another name; sagann replaces its own datasets only.",
        )


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

"""A dataset folder that appears whole or not at all.

All files are written into a hidden sibling, ``.NAME.partial-PID-RANDOM``, which is renamed to NAME at the end, so a
kill at any instant leaves either the old state or the new one. The writer holds a lock (flock) on the partial folder.
The system releases the lock when the process dies. The next writer of NAME removes every partial folder whose lock is
free. Locks are used instead of process ids, because the system reuses process ids.

To replace a dataset, one system call exchanges the two folders (Linux). Without this call, the old folder has another
name for an instant; if the process dies in that instant, :func:`recover` renames the folder back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from sagann.errors import DatasetError
from sagann.storage.durable import sync_folder

MANIFEST_FILE = "manifest.json"
"The file that makes a folder a dataset; it is written last."
FORMAT = "sagann-graph"
"Value of ``format``, the first field of a manifest; it distinguishes manifests of sagann from files of other programs."

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Make a partial folder to write into; rename it to ``path`` when the block ends, or remove it when the block fails.

    The caller syncs its files and writes the manifest last.
    """
    # A symbolic link stays; the folder behind the link is replaced.
    path = Path(os.path.realpath(path))
    try:
        recover(path)
        _check_target(path, overwrite=overwrite)
        _remove_stale(path)
        partial, lock = _make_locked(path)
        try:
            yield partial
            _put_in_place(partial, path, overwrite=overwrite)
        finally:
            # The folder holds unfinished files or, after an exchange, the replaced dataset.
            shutil.rmtree(partial, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DatasetError(
            "disk is full" if full else "a file cannot be read or written",
            value=error.strerror or str(error),
            where=str(error.filename or path),
            fix="Free some space; nothing was left behind."
            if full
            else "Check that the file exists, and its permissions.",
        ) from error


def recover(path: Path) -> None:
    """Rename a dataset back if a process died while it replaced the dataset."""
    if path.exists() or not path.parent.is_dir():
        return
    for aside in _siblings(path, "replaced"):
        # A free lock shows that no process is replacing the dataset now.
        with _try_lock(aside) as free:
            if free and not path.exists():
                os.rename(aside, path)


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
            "folder to write into does not exist",
            value=str(path.parent),
            where=str(path),
            fix="Make it first, or choose another place.",
        )
    if not path.exists():
        return
    replaceable = is_dataset(path)
    if replaceable and not overwrite:
        raise DatasetError(
            "a dataset stands there already",
            value="overwriting was not asked for",
            where=str(path),
            fix="Choose another name, or pass overwrite=True (--overwrite) to replace it.",
        )
    if not replaceable and not (path.is_dir() and not any(path.iterdir())):
        raise DatasetError(
            "what stands there is not a dataset of sagann",
            value=f"a {'folder' if path.is_dir() else 'file'} without a {MANIFEST_FILE} of sagann",
            where=str(path),
            fix="Choose another name; sagann replaces its own datasets only.",
        )


def _remove_stale(path: Path) -> None:
    for kind in ("partial", "replaced"):
        for stale in _siblings(path, kind):
            with _try_lock(stale) as free:
                if free:
                    shutil.rmtree(stale, ignore_errors=True)


def _make_locked(path: Path) -> tuple[Path, int]:
    while True:
        partial = path.parent / f".{path.name}.partial-{os.getpid()}-{secrets.token_hex(4)}"
        partial.mkdir()
        # Before the lock is taken, another import may find the folder unlocked and remove it.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(partial, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = partial.exists()
            except OSError as error:
                # On a file system without locks no import can lock the folder, so none removes it.
                is_ours = not isinstance(error, BlockingIOError)
            if is_ours:
                return partial, lock
            os.close(lock)


@contextlib.contextmanager
def _try_lock(folder: Path) -> Iterator[bool]:
    try:
        lock = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(lock)


def _put_in_place(partial: Path, path: Path, *, overwrite: bool) -> None:
    sync_folder(partial)
    if path.exists() and any(path.iterdir()):
        _check_target(path, overwrite=overwrite)
        if not _exchange(partial, path):
            aside = path.parent / partial.name.replace(".partial-", ".replaced-")
            old_lock = os.open(path, os.O_RDONLY)
            with contextlib.suppress(OSError):
                fcntl.flock(old_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(path, aside)
            os.rename(partial, path)
            shutil.rmtree(aside, ignore_errors=True)
            os.close(old_lock)
    else:
        os.rename(partial, path)
    sync_folder(path.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders atomically; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    done: int = renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return done == 0


def _siblings(path: Path, kind: str) -> Iterator[Path]:
    return path.parent.glob(f".{glob.escape(path.name)}.{kind}-*")

"""A dataset folder that appears whole or not at all.

Everything is written into a hidden sibling, ``.NAME.partial-PID-RANDOM``, and renamed into place at the end,
so a kill at any instant leaves either the old state or the new one. The writer holds a lock (flock) on the
partial folder; the system drops it when the process dies, however it dies, and the next import removes every
partial folder whose lock is free. That needs no guess about process ids, which are reused.

A dataset is replaced by exchanging the two folders in one system call (Linux). Where that is not to be had the
old folder steps aside for an instant; should the process die in that instant, :func:`recover` puts it back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
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
"What a manifest says first: other programs have files of that name too."

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Give a partial folder to write into; put it at ``path`` when the block ends well, remove it when not.

    Args:
        path: where the dataset is to stand; its parent must exist.
        overwrite: replace a dataset that stands there.
    Yields:
        the partial folder. The caller syncs its files and writes the manifest last.
    Raises:
        DatasetError: something stands at ``path`` that may not be replaced, or the disk refuses.
    """
    # Of a link, the folder that it leads to.
    path = Path(os.path.realpath(path))
    try:
        recover(path)
        _check_target(path, overwrite=overwrite)
        _remove_stale(path)
        partial, lock = _make_locked(path)
    except OSError as error:
        raise _disk_error(error, path) from error
    try:
        yield partial
        _put_in_place(partial, path, overwrite=overwrite)
    except OSError as error:
        raise _disk_error(error, path) from error
    finally:
        # Either what was left unfinished or, after an exchange, the dataset that was replaced.
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def recover(path: Path) -> None:
    """Put a dataset back that stepped aside for its successor when the process died in between."""
    if path.exists() or not path.parent.is_dir():
        return
    for aside in path.parent.glob(f".{_glob_name(path)}.replaced-*"):
        # Taking the lock shows that nobody is in the middle of replacing.
        with _try_lock(aside) as free:
            if free and not path.exists():
                os.rename(aside, path)


def is_dataset(folder: Path) -> bool:
    """Whether a folder holds a dataset, be it damaged."""
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
        for stale in path.parent.glob(f".{_glob_name(path)}.{kind}-*"):
            with _try_lock(stale) as free:
                if free:
                    shutil.rmtree(stale, ignore_errors=True)


def _make_locked(path: Path) -> tuple[Path, int]:
    while True:
        partial = path.parent / f".{path.name}.partial-{os.getpid()}-{secrets.token_hex(4)}"
        partial.mkdir()
        # Between the two calls another import may take the folder for a dead one and remove it.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(partial, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            except OSError:
                # A file system without locks: nobody can lock, so nobody takes the folder for a dead one.
                return partial, lock
            if partial.exists():
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
    """Exchange two folders in one step; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    done: int = renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return done == 0


def _glob_name(path: Path) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path.name)


def _disk_error(error: OSError, path: Path) -> DatasetError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return DatasetError(
        "disk is full" if full else "a file cannot be read or written",
        value=error.strerror or str(error),
        where=str(error.filename or path),
        fix="Free some space; nothing was left behind." if full else "Check that it is there, and its permissions.",
    )

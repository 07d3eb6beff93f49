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
    partial = _Partial(Path(os.path.realpath(path)))
    try:
        recover(partial.path)
        _check_target(partial.path, overwrite=overwrite)
        with partial.written():
            yield partial.new
            if partial.path.exists():
                _check_target(partial.path, overwrite=overwrite)
            partial.put_in_place()
    except Timeout as error:
        raise DatasetError(
            f"another process is writing the dataset: it holds {error.lock_file} (in {path})",
            hint="Wait for it, stop it, or choose another name.",
        ) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DatasetError(
            f"{'disk is full' if full else 'a file cannot be read or written'}: {error.strerror or str(error)} "
            f"(in {error.filename or path})",
            hint="Free some space; nothing was left behind."
            if full
            else "Check that the file exists, and its permissions.",
        ) from error


def recover(path: Path) -> None:
    """Put a dataset back if a process died while it replaced the dataset."""
    partial = _Partial(path)
    if not path.exists() and partial.old.exists():
        # Another process may be replacing it now.
        with suppress(Timeout), partial.lock:
            partial.clean()


class _Partial:
    """The hidden folder beside a dataset's place."""

    def __init__(self, path: Path) -> None:
        self.path, self._folder = path, path.parent / f".{path.name}.partial"
        self.new, self.old = self._folder / "new", self._folder / "old"
        self.lock = FileLock(self._folder / "lock", timeout=0)

    @contextmanager
    def written(self) -> Iterator[None]:
        """Inside the block, the folder is this process's, and ``new`` is there; then all of it goes."""
        self._folder.mkdir(exist_ok=True)
        with self.lock:
            try:
                self.clean()
                self.new.mkdir()
                yield
            finally:
                self.clean()
                shutil.rmtree(self._folder, ignore_errors=True)

    def put_in_place(self) -> None:
        """Rename ``new``; a dataset in its place becomes ``old``."""
        sync_folder(self.new)
        if self.path.exists():
            self.path.rename(self.old)
        self.new.rename(self.path)
        sync_folder(self.path.parent)

    def clean(self) -> None:
        """Put an old dataset back where none has taken its place; remove what else is left."""
        if self.old.exists() and not self.path.exists():
            self.old.rename(self.path)
        for folder in (self.new, self.old):
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

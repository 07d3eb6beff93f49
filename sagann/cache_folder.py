"""The folder that keeps generated and compiled code from process to process."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from sagann.cache_limit import limit_at_exit
from sagann.private_folder import private_folder
from sagann.temporary import Removal

_given = set[Path]()
"Folders that :func:`cache_folder` has returned, without temporary ones."


def cache_folder() -> Path:
    """The folder of kernels: below $SAGANN_CACHE or the user's cache folder, or a temporary one.

    It is the first that this process can write to and other users cannot. A warning names each that is passed over.
    """
    for folder in _candidates():
        try:
            found = usable_folder(folder)
        except OSError as error:
            warn_of_unused(folder, error)
        else:
            _given.add(found)
            return found
    return _temporary_folder()


def limit_if_added(path: Path) -> None:
    """Have this process keep its cache folder below the limit when it ends, if a file that it has added lies there.

    Args:
        path: the file, or the folder that it was added to.
    """
    for folder in _given.intersection([path, *path.parents]):
        limit_at_exit(folder)


def usable_folder(folder: Path) -> Path:
    """The :func:`private_folder` at a path; an OSError where this process cannot write to it."""
    found = private_folder(folder)
    if not os.access(found, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(found))
    return found


def warn_of_unused(folder: Path, error: OSError) -> None:
    """Say, once in a process, why a folder that was named for compiled code is not used."""
    _warn(
        f"Compiled code is not kept in '{folder}': {error.strerror}. Another folder takes its place. "
        "Set SAGANN_CACHE to a folder that belongs to you and that nobody else may write to."
    )


@cache
def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _candidates() -> Iterator[Path]:
    if stated := os.environ.get("SAGANN_CACHE"):
        yield Path(stated) / "kernels"
    if of_user := os.environ.get("XDG_CACHE_HOME"):
        yield Path(of_user) / "sagann" / "kernels"
    try:
        home = Path.home()
    except RuntimeError:
        # The user has no home folder.
        return
    yield home / ".cache" / "sagann" / "kernels"


@cache
def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="sagann-kernels-")
    atexit.register(Removal(partial(_remove, folder, os.getpid())))
    return Path(folder)


def _remove(folder: str, owner: int) -> None:
    # A forked child does not own the folder.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)

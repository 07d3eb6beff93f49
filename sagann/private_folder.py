"""Folders that code is loaded from: only this user and root may write to them.

Numba unpickles what it kept, and unpickling runs code. So another user must neither put a file into such a folder, nor exchange
the folder or one above it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

_ROOT = 0
_MAX_LINKS = 40
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# O_PATH opens a folder that may be passed through, but not listed.
_OPENED = os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)


class UnsafeError(PermissionError):
    """A file or folder that another user may have written, or may exchange."""


def private_folder(path: Path) -> Path:
    """Check a folder and every folder above it, and return its path without links. Missing folders get mode 0700.

    Each folder is opened inside the one above, and checked while it is open: nobody can exchange it in between. A folder above
    that everybody may write to, such as /tmp, needs the sticky bit, by which users cannot rename what is not theirs.

    Raises:
        UnsafeError: a folder or a link belongs to another user, or others may write to the folder.
        OSError: a folder cannot be made or opened.
    """
    ahead, here, num_links = [*reversed(path.absolute().parts)], Path("/"), 0
    handle = os.open(here, _OPENED)
    try:
        while ahead:
            _check(os.fstat(handle), here, may_be_sticky=True)
            name = ahead.pop()
            target = _target(name, handle, here)
            if target is not None:
                num_links += 1
                if num_links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                ahead += reversed(Path(target).parts)
                continue
            inner = _open_or_make(name, handle)
            os.close(handle)
            handle = inner
            here = here.parent if name == ".." else here / name
        _check(os.fstat(handle), here, may_be_sticky=False)
    finally:
        os.close(handle)
    return here


def require_private(path: Path) -> None:
    """Refuse a file that another user owns or may write to; the file may be missing. Its folder is a private one."""
    with suppress(FileNotFoundError):
        _check(path.lstat(), path, may_be_sticky=False)


def _target(name: str, folder: int, path: Path) -> str | None:
    """Target of a link in an open folder; None for anything else. Only links of this user and of root are followed."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(found.st_mode):
        return None
    _check_owner(found, path / name)
    return os.readlink(name, dir_fd=folder)


def _open_or_make(name: str, folder: int) -> int:
    with suppress(FileNotFoundError):
        return os.open(name, _OPENED, dir_fd=folder)
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, _OPENED, dir_fd=folder)


def _check(found: os.stat_result, path: Path, *, may_be_sticky: bool) -> None:
    _check_owner(found, path)
    if found.st_mode & _OTHERS_WRITE and not (may_be_sticky and found.st_mode & stat.S_ISVTX):
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise UnsafeError(errno.EPERM, f"other users may write to '{path}' (mode {mode})", str(path))


def _check_owner(found: os.stat_result, path: Path) -> None:
    if found.st_uid not in (_ROOT, os.geteuid()):
        raise UnsafeError(errno.EPERM, f"'{path}' belongs to another user (id {found.st_uid})", str(path))

"""Made folders: the last process that leaves a folder removes it, if a process like it has made it.

Several processes may share a folder that one of them made, or work below it, and any of them may leave last. So a made folder has
a mark, an empty file:

- Who comes makes the folders that do not exist, then something of its own in the lowest one, and then marks what it made. It
  marks again the folders above that had a mark when it came.
- Who leaves removes its own things, and then each marked folder, from the lowest one upwards, in which there is nothing but the
  mark. A folder that holds nothing but files of somebody else loses the mark, and stays.
- A removal that fails because somebody has come meanwhile puts the mark back, for whoever leaves last.

A process that was killed leaves the mark behind, so the next one that comes and leaves removes the folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from errno import EEXIST, ENOTEMPTY
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_MARK = ".sagann-made"
_ATTEMPTS = 100
"Times that folders are made again because another process, which left them just then, has removed them."


def enter(folder: Path, make: Callable[[Path], T]) -> T:
    """Make a folder and those above it, and what ``make`` makes in it; gives what ``make`` gives.

    Args:
        folder: an absolute path.
        make: makes something in the folder by which other processes see that it is in use.

    Raises:
        OSError: a folder cannot be made.
        ValueError: the path has a name that no folder may have.
    """
    ours: set[Path] = set()
    for left in reversed(range(_ATTEMPTS)):
        # What an earlier attempt has made may be in use by now.
        ours.update(list(takewhile(lambda each: _is_ours(each, ours), (folder, *folder.parents))))
        try:
            # What is not ours is not made: it was there, and is being removed.
            for each in sorted(ours):
                each.mkdir(exist_ok=True)
            made = make(folder)
        except BaseException as error:
            _remove_empty(ours)
            if not left or not isinstance(error, FileNotFoundError | FileExistsError):
                raise
            # A folder was there, and is gone by now.
        else:
            for each in ours:
                _mark(each)
            break
    return made


def _is_ours(folder: Path, known: Collection[Path]) -> bool:
    return folder in known or _is_marked(folder) or not folder.exists()


def leave(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Remove a marked folder that is empty, and those above it, up to the first one that stays.

    Args:
        folder: an absolute path.
        is_ours: whether an entry of this name shows that another process uses the folder.
    """
    for each in (folder, *folder.parents):
        if not _is_removed(each, is_ours):
            return


def _is_removed(folder: Path, is_ours: Callable[[str], bool]) -> bool:
    """Remove a marked folder if it is empty; whether it is gone."""
    with suppress(OSError):
        while _is_marked(folder):
            entries = [folder / name for name in os.listdir(folder) if name != _MARK]
            # A folder may be one that somebody makes or removes just now.
            if any(is_ours(each.name) or each.is_dir() or not each.exists() for each in entries):
                return False
            (folder / _MARK).unlink()
            if entries:
                return False
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno not in (ENOTEMPTY, EEXIST):
                    raise
                # Somebody has come, and may have left again: look once more.
                _mark(folder)
    return not folder.exists()


def _is_marked(folder: Path) -> bool:
    """Whether this user's process has made a folder. A mark that is a link, a pipe or another user's file is none."""
    try:
        found = (folder / _MARK).lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _mark(folder: Path) -> None:
    # It may be marked already. A folder that takes no mark stays.
    with suppress(OSError):
        os.close(os.open(folder / _MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in sorted(folders, reverse=True):
        # Another process may use the folder; or it was never made, because its name is invalid.
        with suppress(OSError, ValueError):
            folder.rmdir()

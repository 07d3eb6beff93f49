"""The one door to files that others may have made: regular files only, opened without waiting, with one error for each fault.

A pipe would block whoever opens it, and a device has no end. So every file is opened by :func:`open_file`, which does not wait and
looks at what it has opened. Libraries that open a path themselves are called inside :func:`reading`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from typing import BinaryIO, Literal, overload

from sagann.errors import DatasetError, InputError, SagannError, first_line

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@overload
def open_file(
    path: str | os.PathLike[str], mode: Literal["rb"] = "rb", *, error: type[SagannError] = DatasetError
) -> BufferedReader: ...


@overload
def open_file(
    path: str | os.PathLike[str], mode: Literal["rb", "wb", "ab"], *, error: type[SagannError] = DatasetError
) -> BufferedReader | BufferedWriter: ...


def open_file(
    path: str | os.PathLike[str],
    mode: Literal["rb", "wb", "ab"] = "rb",
    *,
    error: type[SagannError] = DatasetError,
) -> BinaryIO:
    """Open a file as ``open`` does, but refuse what is no regular file with ``error`` instead of waiting for it.

    To write, a link is refused too: in a folder of somebody else it may lead to any file.
    """
    if mode != "rb" and os.path.islink(path):
        raise _not_a_file("a link", path, error)
    no_link = 0 if mode == "rb" else os.O_NOFOLLOW
    return open(path, mode, opener=lambda name, flags: open_descriptor(name, flags | no_link, error=error))


def open_descriptor(path: str | os.PathLike[str], flags: int, *, error: type[SagannError] = DatasetError) -> int:
    """Open a regular file as ``os.open`` does; see :func:`open_file`."""
    # Before the file is opened, because opening a device may act on it.
    require_file(path, error=error)
    file = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    try:
        _require_regular(os.fstat(file).st_mode, path, error)
    except SagannError:
        os.close(file)
        raise
    return file


def read_file(path: str | os.PathLike[str], *, error: type[SagannError] = DatasetError) -> bytes:
    """The content of a regular file; see :func:`open_file`."""
    with open_file(path, error=error) as file:
        return file.read()


def require_file(path: str | os.PathLike[str], *, error: type[SagannError] = DatasetError) -> None:
    """Refuse a path at which something other than a file stands; a missing file is left to the function that opens it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    _require_regular(mode, path, error)


def _require_regular(mode: int, path: str | os.PathLike[str], error: type[SagannError]) -> None:
    if stat.S_ISREG(mode):
        return
    raise _not_a_file(next((kind for matches, kind in _KINDS if matches(mode)), "something else"), path, error)


def _not_a_file(found: str, path: str | os.PathLike[str], error: type[SagannError]) -> SagannError:
    return error(
        "not a file",
        value=f"{found}, a regular file is needed",
        where=str(path),
        fix="Name a file; save the output of a pipe to a file first.",
    )


@contextmanager
def reading(
    path: str | os.PathLike[str],
    unreadable: tuple[type[Exception], ...],
    *,
    what: str = "file",
    fix: str = "The file is damaged, truncated, or of another format; fetch or make it again.",
) -> Iterator[None]:
    """Turn exceptions of the classes ``unreadable`` into DatasetErrors that name the file.

    ``unreadable`` has the exceptions that a reader raises for damaged and foreign files; ``what`` is the subject of the
    message.
    """
    require_file(path)
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise DatasetError(
            "file not found", value="there is no such file", where=str(path), fix="Check the path."
        ) from error
    except unreadable as error:
        raise DatasetError(f"{what} cannot be read", value=first_line(error), where=str(path), fix=fix) from error

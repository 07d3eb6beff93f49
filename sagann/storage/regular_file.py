"""Files that are opened for reading: only regular files, and an error that names the file.

A pipe would block its reader, and a device has no end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sagann.errors import DatasetError, InputError, first_line

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_file(path: str | os.PathLike[str], *, error: type[InputError] = DatasetError) -> None:
    """Refuse a path at which something other than a file stands; a missing file is left to the function that opens it."""
    path = Path(path)
    if path.is_file() or not path.exists():
        return
    mode = path.stat().st_mode
    found = next((kind for matches, kind in _KINDS if matches(mode)), "something else")
    raise error(
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
    require_file(path, error=DatasetError)
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

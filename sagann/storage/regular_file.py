"""What is no regular file is refused before it is opened: a pipe would block, and a device has no end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sagann.errors import DatasetError, InputError

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_file(path: str | os.PathLike[str], *, error: type[InputError] = DatasetError) -> None:
    """Refuse ``path`` where it is there and not a file; what is missing is left to whoever opens it.

    Raises:
        InputError: a folder, a pipe or a device stands there; of the class ``error``.
    """
    path = Path(path)
    if path.is_file() or not path.exists():
        return
    mode = path.stat().st_mode
    found = next((kind for matches, kind in _KINDS if matches(mode)), "something else")
    raise error(
        "not a file",
        value=f"{found}, a regular file is needed",
        where=str(path),
        fix="Name a file; what comes out of a pipe has to be saved to one first.",
    )

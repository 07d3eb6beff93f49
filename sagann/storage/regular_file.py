"""Files that libraries read: one error for each fault, with the file's name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sagann.errors import DatasetError, SagannError, first_line


def require_file(path: str | os.PathLike[str]) -> None:
    """Refuse a folder, or a pipe, which can be read only once; a missing file is left to the function that opens it."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise DatasetError(
            f"not a file: {'a folder' if os.path.isdir(path) else 'a pipe or a device'}, a file is needed (in {path})",
            hint="Name a file; save the output of a pipe to a file first.",
        )


@contextmanager
def reading(
    path: str | os.PathLike[str],
    *,
    what: str = "file",
    hint: str = "The file is damaged, truncated, or of another format; fetch or make it again.",
) -> Iterator[None]:
    """Turn errors of readers into DatasetErrors that name the file: libraries raise of any kind. ``what`` is the subject of the message."""
    require_file(path)
    try:
        yield
    except SagannError:
        raise
    except FileNotFoundError as error:
        raise DatasetError(f"file not found: {path}", hint="Check the path.") from error
    except Exception as error:
        raise DatasetError(f"{what} cannot be read: {first_line(error)} (in {path})", hint=hint) from error

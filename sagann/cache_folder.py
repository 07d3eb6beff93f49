"""The folder that keeps generated and compiled code from process to process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path


def cache_folder() -> Path:
    """The folder of kernels: below $SAGANN_CACHE or the user's cache folder, or a temporary one if neither can be written."""
    try:
        if stated := os.environ.get("SAGANN_CACHE"):
            folder = Path(stated) / "kernels"
        else:
            of_user = os.environ.get("XDG_CACHE_HOME")
            folder = (Path(of_user) if of_user else Path.home() / ".cache") / "sagann" / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        # RuntimeError: the user has no home folder.
        return _temporary_folder()
    return folder if os.access(folder, os.W_OK) else _temporary_folder()


@cache
def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="sagann-kernels-")
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, owner: int) -> None:
    # A forked child does not own the folder.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)

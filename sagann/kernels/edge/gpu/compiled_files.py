"""The folder of Triton's compiled kernels. Triton loads machine code from it, so no other user may write to it."""

from __future__ import annotations

import os
from pathlib import Path

from sagann.cache_folder import cache_folder, usable_folder, warn_of_unused
from sagann.cache_limit import limit_at_exit

_VARIABLE = "TRITON_CACHE_DIR"


def keep_in_private_folder() -> None:
    """Have Triton keep what it compiles in the folder that ``TRITON_CACHE_DIR`` names if that is private, else in sagann's own.

    The choice holds for every kernel that this process and its children compile from now on.
    """
    if stated := os.environ.get(_VARIABLE):
        try:
            usable_folder(Path(stated))
        except OSError as error:
            warn_of_unused(Path(stated), error)
        else:
            return
    folder = cache_folder()
    os.environ[_VARIABLE] = str(folder)
    # Triton does not say when it adds a kernel.
    limit_at_exit(folder)

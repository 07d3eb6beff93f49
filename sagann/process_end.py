"""How this process ends."""

from __future__ import annotations

import gc


def end_quickly() -> None:
    """Spare Python the search for garbage among all objects with which it ends: the system takes back what is left.

    Libraries that nanobind binds, as newer versions of Triton, print whatever is left of them then. With one of them, Python searches.
    """
    if any(each.__module__ == "nanobind" for each in object.__subclasses__()):
        gc.unfreeze()
    else:
        gc.freeze()

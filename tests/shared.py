"""Folders that pytest's processes fill once and share: the costly set-ups of modules.

pytest-xdist spreads the tests of a module over its processes, and each process sets up fixtures of its own. What a fixture
computes once for all of them is written to files.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Fill = Callable[[Path], object]
SharedFolder = Callable[[str, Fill], Path]
"Gives the folder of a name, filled by a function; no test may write to it."


def shared_root(config: pytest.Config, base: Path) -> Path:
    """The folder that all processes of a run of pytest have in common, where ``base`` is this process' temporary folder."""
    return base.parent if hasattr(config, "workerinput") else base


def filled_once(root: Path, name: str, fill: Fill) -> Path:
    """The folder ``name`` in ``root``. The first process to ask has ``fill`` fill it; others that ask wait meanwhile.

    Where ``fill`` raises, the next process that asks starts anew.
    """
    folder, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        # The lock goes with its process, however that ends.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            done.touch()
    return folder

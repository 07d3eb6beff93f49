"""What torchrun tells the processes that it starts, by environment variables."""

from __future__ import annotations

import os
import re

from sagann.errors import InputError, shown


def is_worker() -> bool:
    """Whether torchrun started this process together with others."""
    return "RANK" in os.environ and num_workers() > 1


def rank() -> int:
    """Number of this worker, from 0."""
    return _number("RANK", 0)


def num_workers() -> int:
    """Number of the workers that torchrun started; 1 where it started none."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """Number of this worker among those of its machine, from 0."""
    return _number("LOCAL_RANK", 0)


def num_local_workers() -> int:
    """Number of the workers on this machine; 1 where nothing states it."""
    return _number("LOCAL_WORLD_SIZE", 1)


def is_restarted() -> bool:
    """Whether torchrun has started this process anew, after a worker was lost (``--max-restarts``)."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not re.fullmatch("[0-9]{1,9}", value):
        raise InputError(
            f"a variable of the environment is no number: {shown(value)}, expected digits (in the environment's {name})",
            hint="Unset it: torchrun sets it for the processes that it starts.",
        )
    return int(value)

"""Processes: what torchrun tells those that it starts, by environment variables; and how they compute and end."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys

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
    if value.isascii() and value.isdecimal():
        return int(value)
    raise InputError(
        f"a variable of the environment is no number: {shown(value)}, expected digits (in the environment's {name})",
        hint="Unset it: torchrun sets it for the processes that it starts.",
    )


_PR_SET_PDEATHSIG = 1
_computes: int | None = None
"Process that was the first to compute on several threads; its forks have this number too."


def require_own_threads() -> None:
    """Refuse to compute in a fork of a process that has computed: it has none of OpenMP's threads, and would wait for them for ever.

    A process that computes on one thread needs none.
    """
    # Imported here: commands that only ask what torchrun has started need no PyTorch.
    import torch

    global _computes
    if torch.get_num_threads() == 1:
        return
    if _computes is None:
        _computes = os.getpid()
    if _computes != os.getpid():
        raise InputError(
            f"a forked process has none of its parent's threads: process {_computes} had computed on "
            f"{torch.get_num_threads()} threads when this one was forked (in process {os.getpid()})",
            hint="Start processes with multiprocessing.get_context('spawn'), or fork before anything is computed.",
        )


def end_with(parent: int) -> None:
    """Have Linux kill this process when its parent, of this number, ends, also while it computes or is stopped. Elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def end_quickly() -> None:
    """Spare Python the search for garbage among all objects with which it ends: the system takes back what is left.

    Libraries that nanobind binds, as newer versions of Triton, print whatever is left of them then. With one of them, Python searches.
    """
    if any(each.__module__ == "nanobind" for each in object.__subclasses__()):
        gc.unfreeze()
    else:
        gc.freeze()

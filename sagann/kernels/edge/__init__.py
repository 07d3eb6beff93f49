"""Edge functions: what is computed on every edge and how it is reduced, in one pass, in several dialects.

A dialect is a module with kernels that run an edge function. It is chosen by name and by kind of device.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Protocol

from sagann.errors import InputError, MissingDependencyError, require_choice

if TYPE_CHECKING:
    from sagann.kernels.edge.state import Run

# The memory that a dialect's kernels read, and its kind of device. Other kinds run plain PyTorch.
_MEMORY = {"cpu": ("the processor's memory", "cpu"), "gpu": ("a CUDA device's memory", "cuda")}
_FASTEST = {kind: name for name, (_, kind) in _MEMORY.items()}
DIALECTS = ("auto", "naive", *_MEMORY)


class Dialect(Protocol):
    """Runs edge functions."""

    run: Run
    "See :func:`sagann.kernels.edge.naive.run`."


def check_dialect(name: str) -> None:
    """Refuse a name that no dialect has."""
    require_choice(name, DIALECTS, what="no such dialect of kernels", where="dialect")


@cache
def dialect_for(device_type: str, name: str = "auto") -> Dialect:
    """The dialect of that name; "auto" takes the fastest dialect for the kind of device."""
    # Triton's interpreter, which tests use, runs kernels on tensors of the CPU.
    is_interpreted = device_type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    has_triton = importlib.util.find_spec("triton") is not None
    if name in _MEMORY and device_type != _MEMORY[name][1] and not (name == "gpu" and is_interpreted):
        memory, needed = _MEMORY[name]
        raise InputError(
            f"the kernels of dialect '{name}' read {memory} alone: edges on a device of type '{device_type}' "
            "(in dialect)",
            hint=f"Choose 'auto', or move topology and features with .to('{needed}').",
        )
    if name == "gpu" and not has_triton:
        raise MissingDependencyError("triton", extra="cuda", feature="dialect 'gpu'")
    if name == "auto":
        name = _FASTEST.get(device_type, "naive")
        # Triton is an extra.
        name = "naive" if name == "gpu" and not has_triton else name
    return importlib.import_module(f"sagann.kernels.edge.{name}")

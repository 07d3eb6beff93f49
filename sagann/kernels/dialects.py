"""Dialects: the kernels that run an edge function, by name and by kind of device."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from sagann.errors import InputError, MissingDependencyError
from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.edge.state import Run

DIALECTS = ("auto", "naive", "cpu", "gpu")
# By kind of device. Other kinds run plain PyTorch.
_FASTEST = {"cpu": "cpu", "cuda": "gpu"}
# The memory that a dialect's kernels read, and its kind of device.
_MEMORY = {"cpu": ("the processor's memory", "cpu"), "gpu": ("a CUDA device's memory", "cuda")}
# By function, the answer of each dialect's ``supports``.
_SUPPORTED: WeakKeyDictionary[EdgeFunction, dict[object, bool]] = WeakKeyDictionary()


class Dialect(Protocol):
    """Runs edge functions."""

    run: Run
    "See :func:`sagann.kernels.edge.naive.run`."


def check_dialect(name: str) -> None:
    """Refuse a name that no dialect has."""
    if name not in DIALECTS:
        raise InputError(
            f"no such dialect of kernels: {name!r} (in dialect)", hint=f"Choose one of {', '.join(DIALECTS)}."
        )


@cache
def dialect_for(device_type: str, name: str = "auto") -> Dialect:
    """The dialect of that name; "auto" takes the fastest dialect for the kind of device.

    Raises:
        InputError: the dialect does not run on such a device.
        MissingDependencyError: the dialect needs Triton, which is not installed.
    """
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


def run_pass(
    dialect: Dialect,
    function: EdgeFunction,
    edges: Edges,
    arrays: Mapping[str, Tensor],
    *,
    seed: int = 0,
    into: Sequence[Tensor] | None = None,
    edge_offset: int = 0,
) -> tuple[Tensor, ...]:
    """Run a pass by the dialect, or in plain PyTorch where the dialect's ``supports`` refuses the function.

    With the dialect bound (``functools.partial``) the function is a :class:`Run`.
    """
    supports: Callable[[EdgeFunction], str | None] | None = getattr(dialect, "supports", None)
    if supports is not None:
        known = _SUPPORTED.setdefault(function, {})
        if supports not in known:
            known[supports] = supports(function) is None
        dialect = dialect if known[supports] else naive
    return dialect.run(function, edges, arrays, seed=seed, into=into, edge_offset=edge_offset)

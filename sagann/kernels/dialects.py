"""Dialects: which kernels run an edge function."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from torch import Tensor

from sagann.errors import InputError, MissingDependencyError
from sagann.graph.topology import Topology
from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.edge.state import Run

DIALECTS = ("auto", "naive", "cpu", "gpu")
# Others run in plain PyTorch.
_FASTEST = {"cpu": "cpu", "cuda": "gpu"}
_SUPPORTED: WeakKeyDictionary[EdgeFunction, bool] = WeakKeyDictionary()


class Dialect(Protocol):
    """Runs edge functions."""

    @property
    def run(self) -> Run:
        """See :func:`sagann.kernels.edge.naive.run`."""
        ...


@runtime_checkable
class ScattersExtrema(Protocol):
    """A dialect with a kernel of its own for the gradient of an extremum of source rows."""

    def scatter_extremum(self, topology: Topology, edge: Tensor, grad: Tensor) -> Tensor:
        """See :func:`sagann.kernels.edge.cpu.scatter_extremum`."""
        ...


def check_dialect(name: str) -> None:
    """Refuse what is no dialect's name.

    Raises:
        InputError: it is none.
    """
    if name not in DIALECTS:
        raise InputError(
            "no such dialect of kernels",
            value=repr(name),
            where="dialect",
            fix=f"Choose one of {', '.join(DIALECTS)}.",
        )


@cache
def dialect_for(device_type: str, name: str = "auto") -> Dialect:
    """The dialect of that name; "auto" takes the fastest one that a kind of device has.

    Raises:
        InputError: its kernels do not run on such a device.
        MissingDependencyError: its kernels need Triton.
    """
    if name == "cpu" and device_type != "cpu":
        raise InputError(
            "the kernels of dialect 'cpu' read the processor's memory alone",
            value=f"edges on a device of type '{device_type}'",
            where="dialect",
            fix="Choose 'auto', or move topology and features with .to('cpu').",
        )
    # Triton's interpreter, by which the kernels are tested, runs them beside tensors of the CPU.
    is_interpreted = device_type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if name == "gpu" and device_type != "cuda" and not is_interpreted:
        raise InputError(
            "the kernels of dialect 'gpu' read a CUDA device's memory alone",
            value=f"edges on a device of type '{device_type}'",
            where="dialect",
            fix="Choose 'auto', or move topology and features with .to('cuda').",
        )
    if name == "gpu" and importlib.util.find_spec("triton") is None:
        raise MissingDependencyError("triton", extra="cuda", feature="dialect 'gpu'")
    if name == "auto":
        name = _FASTEST.get(device_type, "naive")
        # Triton is an extra.
        if name == "gpu" and importlib.util.find_spec("triton") is None:
            name = "naive"
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
    """Run a pass by the dialect, or in plain PyTorch where the dialect says by ``supports`` that it cannot.

    With the dialect bound (``functools.partial``) it is what a gather state runs.
    """
    # To ask whether it follows a protocol would take as long as a small pass.
    supports: Callable[[EdgeFunction], str | None] | None = getattr(dialect, "supports", None)
    if supports is not None:
        if function not in _SUPPORTED:
            _SUPPORTED[function] = supports(function) is None
        dialect = dialect if _SUPPORTED[function] else naive
    return dialect.run(function, edges, arrays, seed=seed, into=into, edge_offset=edge_offset)

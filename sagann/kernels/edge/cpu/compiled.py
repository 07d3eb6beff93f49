"""Compiled kernels: Numba compiles a generated source once per machine, and keeps the machine code beside the source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import llvmlite
import numba

from sagann import machine_code
from sagann.kernels.edge.cpu.emit import emit
from sagann.kernels.edge.cpu.expressions import Form
from sagann.kernels.edge.function import EdgeFunction, verify
from sagann.kernels.edge.kinds import Result, results_of
from sagann.kernels.edge.source import import_source, library_hash


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A function's machine code."""

    address: int
    "Address of the C function."
    results: tuple[Result, ...]
    "The tensors that it writes."


_KERNELS: WeakKeyDictionary[EdgeFunction, dict[Form, Kernel]] = WeakKeyDictionary()


def kernel_of(function: EdgeFunction, form: Form) -> Kernel:
    """A function's kernel for arrays of that form: emitted and compiled, or loaded from the cache folder, at the first call."""
    kernels = _KERNELS.setdefault(function, {})
    if form not in kernels:
        verify(function)
        kernels[form] = Kernel(address=compile_source(emit(function, form)), results=tuple(results_of(function)))
    return kernels[form]


def compile_source(source: str) -> int:
    """The address of the C function ``kernel`` of a generated source."""
    versions = f"numba {numba.__version__}, llvmlite {llvmlite.__version__}"
    library = library_hash(versions, Path(__file__).parent, Path(machine_code.__file__))
    module = import_source(source, library)
    return int(module.kernel.address)

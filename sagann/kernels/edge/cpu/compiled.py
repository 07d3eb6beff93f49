"""Compiled kernels: generated sources, compiled once per machine, loaded by every later process.

Numba keeps the machine code beside the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


def compile_kernel(function: EdgeFunction, form: Form) -> Kernel:
    """Emit, store and compile a function's kernel, or load it from the cache folder."""
    verify(function)
    return Kernel(address=compile_source(emit(function, form)), results=tuple(results_of(function)))


def compile_source(source: str) -> int:
    """The address of the C function ``kernel`` of a generated source."""
    versions = f"numba {numba.__version__}, llvmlite {llvmlite.__version__}"
    library = library_hash(versions, Path(__file__).parent, Path(machine_code.__file__))
    module = import_source(source, library)
    return int(module.kernel.address)

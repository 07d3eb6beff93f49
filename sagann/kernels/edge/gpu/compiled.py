"""Compiled kernels: generated sources in the cache folder. Triton keeps the machine code, by its own rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from sagann.kernels.edge.function import EdgeFunction, verify
from sagann.kernels.edge.gpu.emit import emit
from sagann.kernels.edge.gpu.layout import choose_layout, shared_results
from sagann.kernels.edge.kinds import Result, results_of
from sagann.kernels.edge.source import import_source, library_hash


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A function's kernel."""

    entry: Any
    "Triton's function."
    num_tiles: int
    "Programs that share the features of a row."
    warps: int
    "Warps of a program: part of the kernel, because sums over edges depend on it."
    results: tuple[Result, ...]
    "The tensors that it writes."
    shared: tuple[int, ...]
    "Positions in ``results`` of the tensors that a continued kernel reads from a copy, since all programs of a row write them."

    def launch(self, num_items: int, args: Sequence[object]) -> None:
        """Run all items on the current stream of the current device."""
        self.entry[(num_items, self.num_tiles)](*args, num_warps=self.warps)


def compile_kernel(
    function: EdgeFunction, in_order: frozenset[str] = frozenset(), *, continued: bool = False
) -> Kernel:
    """Emit, store and import a function's kernel; Triton compiles it at the first launch."""
    verify(function)
    module = import_source(
        emit(function, in_order, continued=continued),
        library_hash(f"triton {triton.__version__}", Path(__file__).parent),
    )
    return Kernel(
        entry=module.kernel,
        num_tiles=module.NUM_TILES,
        warps=module.WARPS,
        results=tuple(results_of(function)),
        shared=tuple(shared_results(function, choose_layout(function)) if continued else ()),
    )

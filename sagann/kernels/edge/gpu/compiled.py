"""Compiled kernels: generated sources lie in sagann's cache folder, machine code in Triton's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

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
    "Warps of a program. Sums over edges depend on their number."
    results: tuple[Result, ...]
    "The tensors that the kernel writes."
    shared: tuple[int, ...]
    "Positions in ``results`` of tensors that all programs of a row write, so a continued kernel reads a copy of them."

    def launch(self, num_items: int, args: Sequence[object]) -> None:
        """Run all items on the current stream of the current device."""
        self.entry[(num_items, self.num_tiles)](*args, num_warps=self.warps)


_KERNELS: WeakKeyDictionary[EdgeFunction, dict[tuple[frozenset[str], bool], Kernel]] = WeakKeyDictionary()


def kernel_of(function: EdgeFunction, in_order: frozenset[str] = frozenset(), *, continued: bool = False) -> Kernel:
    """A function's kernel: emitted, stored and imported at the first call. Triton compiles it at the first launch."""
    kernels = _KERNELS.setdefault(function, {})
    if (in_order, continued) not in kernels:
        verify(function)
        module = import_source(
            emit(function, in_order, continued=continued),
            library_hash(f"triton {triton.__version__}", Path(__file__).parent),
        )
        kernels[in_order, continued] = Kernel(
            entry=module.kernel,
            num_tiles=module.NUM_TILES,
            warps=module.WARPS,
            results=tuple(results_of(function)),
            shared=tuple(shared_results(function, choose_layout(function)) if continued else ()),
        )
    return kernels[in_order, continued]

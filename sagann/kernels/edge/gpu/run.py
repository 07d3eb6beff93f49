"""Run an edge function on a CUDA device: generate its kernel on first use, launch the kernel, merge cut rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import triton
from torch import Tensor

from sagann.kernels.edge import naive
from sagann.kernels.edge.canonical import canonical_names, renamed
from sagann.kernels.edge.function import EdgeFunction, verify
from sagann.kernels.edge.gpu.cut import Cut, cut_of
from sagann.kernels.edge.gpu.emit import emit
from sagann.kernels.edge.gpu.layout import choose_layout, shared_results, supports
from sagann.kernels.edge.gpu.merge import MERGES, merge_rows
from sagann.kernels.edge.kinds import Result, results_of
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.edge.source import import_source, library_hash
from sagann.kernels.edge.walk import Walk, check_into, fill_neutral, finished, prepared, targets, walk_over

LIBRARY = Path(__file__).with_name("device.py"), Path(__file__).parents[1] / "random.py"
"The modules that a generated source imports, and those of edge functions that these import."


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


_KERNELS: WeakKeyDictionary[EdgeFunction, dict[tuple[frozenset[str], bool], Kernel]] = WeakKeyDictionary()


def run(
    function: EdgeFunction,
    edges: Edges,
    arrays: Mapping[str, Tensor],
    *,
    seed: int = 0,
    into: Sequence[Tensor] | None = None,
    edge_offset: int = 0,
) -> tuple[Tensor, ...]:
    """Run a pass, or continue one; arguments and results as in :func:`sagann.kernels.edge.naive.run`.

    Work is queued on the current stream of the topology's device. The host waits for the device only in the first pass over
    a topology. Results are bitwise the same from run to run. Half precision is accumulated, and returned, in float32. Not
    differentiable. Under TRITON_INTERPRET=1 the arrays lie on the CPU.
    """
    assert not supports(function), supports(function)
    if edges.num_edges == 0 or any(0 in value.shape for value in function.values):
        return naive.run(function, edges, arrays, seed=seed, into=into, edge_offset=edge_offset)
    check_into(function, edges, into, edge_offset)
    # Made once, so that no later pass waits for the host.
    known: tuple[Walk, Cut] = edges.derived(_key(function.at), lambda: _walk_and_cut(edges, function.at))
    walk, cut = known
    inputs, in_order = prepared(function, arrays, walk, edges)
    kernel = kernel_of(function, in_order, continued=into is not None)
    outs, slots = targets(kernel.results, walk, into, num_totals=1), []
    for result, out in zip(kernel.results, outs, strict=True):
        num_slots = (cut.totals if result.rows == "item" else cut.rows).num_slots
        # Items write their partial results to the first slots.
        slots.append(out.new_empty(max(1, num_slots), *result.shape))
    args: list[object] = [cut.items, walk.indptr, walk.indices]
    if function.at == "src":
        # A pass over edges without ids reads no ids.
        args.append(walk.indices if walk.edge_ids is None else walk.edge_ids)
    # Always 32 bits, so that no seed compiles the kernel anew.
    args.append((seed & 0xFFFFFFFF) - ((seed & 0x80000000) << 1))
    for given, array in zip(function.inputs, inputs, strict=True):
        args += [array] if given.side == "param" else [array, array.stride(0)]
    for result, out, slot in zip(kernel.results, outs, slots, strict=True):
        args += {"row": [out, slot], "edge": [out], "item": [slot]}[result.rows]
    if into is not None:
        if cut.rows.levels:
            fill_neutral(kernel.results, slots)
        args.append(edge_offset)
        args += [copy for number in kernel.shared for copy in (outs[number].clone(), slots[number].clone())]
    with torch.cuda.device_of(cut.items):
        kernel.entry[(len(cut.items), kernel.num_tiles)](*args, num_warps=kernel.warps)
        merge_rows(function, outs, slots, cut.rows.levels, None if into is None else cut.split_rows)
        for number, result in enumerate(kernel.results):
            if result.rows == "item":
                for groups in cut.totals.levels:
                    MERGES["sum"](groups, [slots[number], outs[number]])
                outs[number] = outs[number][0]
    return finished(kernel.results, outs, walk, into)


def kernel_of(function: EdgeFunction, in_order: frozenset[str] = frozenset(), *, continued: bool = False) -> Kernel:
    """A function's kernel: emitted, stored and imported at the first call. Triton compiles it at the first launch."""
    kernels = _KERNELS.setdefault(function, {})
    if (in_order, continued) not in kernels:
        verify(function)
        names = canonical_names(function)
        ordered = frozenset(names[name] for name in in_order)
        module = import_source(
            emit(renamed(function, names), ordered, continued=continued),
            library_hash(f"triton {triton.__version__}", *LIBRARY),
        )
        kernels[in_order, continued] = Kernel(
            entry=module.kernel,
            num_tiles=module.NUM_TILES,
            warps=module.WARPS,
            results=tuple(results_of(function)),
            shared=tuple(shared_results(function, choose_layout(function)) if continued else ()),
        )
    return kernels[in_order, continued]


def set_cut(edges: Edges, at: str, cut: Cut) -> None:
    """Give edges a cut that was made on the host and copied to their device, so that passes do not wait for the offsets."""
    edges.derived(("used rows", at), lambda: cut.used_rows)
    edges.derived(_key(at), lambda: (walk_over(edges, at, cut.work), cut))


def _key(at: str) -> object:
    return ("edge pass", "gpu", at)


def _walk_and_cut(edges: Edges, at: str) -> tuple[Walk, Cut]:
    cut = cut_of(edges, at).mapped(lambda array: array.to(edges.device))
    return walk_over(edges, at, cut.work), cut

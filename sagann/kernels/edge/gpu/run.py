"""Run an edge function on a CUDA device: generate its kernel on first use, launch the kernel, merge cut rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
import triton
from torch import Tensor

from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction, End
from sagann.kernels.edge.gpu.cut import Cut, cut_of
from sagann.kernels.edge.gpu.emit import emit
from sagann.kernels.edge.gpu.layout import shared_results, supports
from sagann.kernels.edge.gpu.merge import MERGES, merge_rows
from sagann.kernels.edge.gpu.writers import WRITERS
from sagann.kernels.edge.pass_edges import Edges, fill_neutral, finished, grouped, prepared, targets
from sagann.kernels.edge.source import canonical_source, import_source, library_hash
from sagann.kernels.seeds import Seed, device_seed

LIBRARY = Path(__file__).with_name("device.py"), Path(__file__).parents[1] / "random.py"
"The modules that a generated source imports, and those of edge functions that these import."


def run(
    function: EdgeFunction,
    edges: Edges,
    arrays: Mapping[str, Tensor],
    *,
    seed: Seed = 0,
    into: Sequence[Tensor] | None = None,
    edge_offset: int = 0,
) -> tuple[Tensor, ...]:
    """Run a pass, or continue one; arguments and results as in :func:`sagann.kernels.edge.naive.run`.

    Work is queued on the current stream of the topology's device. The host waits for the device only in the first pass over
    a topology. Results are bitwise the same from run to run. Half precision is accumulated, and returned, in float32. Not
    differentiable. Under TRITON_INTERPRET=1 the arrays lie on the CPU. A function without a kernel runs in plain PyTorch.
    """
    has_writers = all(output.reduce in WRITERS for output in function.outputs)
    if edges.num_edges == 0 or function.is_empty or not has_writers or supports(function) is not None:
        return naive.run(function, edges, arrays, seed=seed, into=into, edge_offset=edge_offset)
    # Made once, so that no later pass waits for the host.
    cut: Cut = edges.derived(
        ("cut", function.at), lambda: cut_of(edges, function.at).mapped(lambda array: array.to(edges.device))
    )
    pass_edges = grouped(edges, function.at)
    inputs, in_order = prepared(function, arrays, edges)
    kernel, results = kernel_of(function, in_order, continued=into is not None), function.results
    outs, slots = targets(results, pass_edges, into, num_totals=1), []
    for result, out in zip(results, outs, strict=True):
        num_slots = (cut.totals if result.rows == "item" else cut.rows).num_slots
        # Items write their partial results to the first slots.
        slots.append(out.new_empty(max(1, num_slots), *result.shape))
    args: list[object] = [cut.items, pass_edges.indptr, pass_edges.indices]
    if function.at == "src":
        # A pass over edges without ids reads no ids.
        args.append(pass_edges.indices if pass_edges.edge_ids is None else pass_edges.edge_ids)
    # Without random values any pointer does.
    args.append(device_seed(seed, edges.device) if function.random else cut.items)
    for given, array in zip(function.inputs, inputs, strict=True):
        args += [array] if given.side == "param" else [array, array.stride(0)]
    for result, out, slot in zip(results, outs, slots, strict=True):
        args += {"row": [out, slot], "edge": [out], "item": [slot]}[result.rows]
    if into is not None:
        if cut.rows.levels:
            fill_neutral(results, slots)
        args.append(edge_offset)
        args += [
            copy
            for number in shared_results(function, kernel.NUM_TILES)
            for copy in (outs[number].clone(), slots[number].clone())
        ]
    with torch.cuda.device_of(cut.items):
        kernel.kernel[(len(cut.items), kernel.NUM_TILES)](*args, num_warps=kernel.WARPS)
        merge_rows(function, outs, slots, cut.rows.levels, None if into is None else cut.split_rows)
        for number, result in enumerate(results):
            if result.rows == "item":
                for groups in cut.totals.levels:
                    MERGES["sum"](groups, [slots[number], outs[number]])
                outs[number] = outs[number][0]
    return finished(results, outs, pass_edges, into)


def kernel_of(
    function: EdgeFunction, in_order: frozenset[str] = frozenset(), *, continued: bool = False
) -> ModuleType:
    """The module of a function's kernel, emitted, stored and imported at the first call. Triton compiles it at the first launch."""

    def imported() -> ModuleType:
        library = library_hash(f"triton {triton.__version__}", *LIBRARY)
        return import_source(canonical_source(function, in_order, partial(emit, continued=continued)), library)

    kernel: ModuleType = function.derived(("triton", in_order, continued), imported)
    return kernel


def set_cut(edges: Edges, at: End, cut: Cut) -> None:
    """Give edges a cut that was made on the host and copied to their device, so that passes do not wait for the offsets."""
    grouped(edges, at).derived("used rows", lambda: cut.used_rows)
    edges.derived(("cut", at), lambda: cut)

"""Run an edge function on a CUDA device: generate it on first use, launch it, merge what was cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.gpu.compiled import Kernel, compile_kernel
from sagann.kernels.edge.gpu.cut import Cut, cut_of
from sagann.kernels.edge.gpu.emit import emit
from sagann.kernels.edge.gpu.layout import supports
from sagann.kernels.edge.gpu.merge import merge_more_rows, merge_rows, merge_total
from sagann.kernels.edge.kinds import lanes
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.edge.walk import (
    Walk,
    add_totals,
    check_into,
    fill_neutral,
    name_edges,
    prepare,
    targets,
    walk_by,
)

_KERNELS: WeakKeyDictionary[EdgeFunction, dict[tuple[frozenset[str], bool], Kernel]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """What a pass over one topology needs on the device; made once, so that no later pass waits for the host."""

    walk: Walk
    cut: Cut
    "On the device."


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

    Work is queued on the current stream of the topology's device; once a topology and a function have been met, the
    host does not wait for it. Results are bitwise the same from run to run. Half precision is accumulated, and
    returned, in float32. Not differentiable. Under TRITON_INTERPRET=1 the arrays lie on the CPU.

    Raises:
        ValueError: the function cannot be a Triton kernel (:func:`sagann.kernels.edge.gpu.supports`).
    """
    if reason := supports(function):
        raise ValueError(f"This edge function cannot run as one Triton kernel: {reason}. Run it over edge tiles.")
    if edges.num_edges == 0 or any(lanes(value) == 0 for value in function.values):
        return naive.run(function, edges, arrays, seed=seed, into=into, edge_offset=edge_offset)
    check_into(function, edges, into, edge_offset)
    plan: _Plan = edges.derived(_key(function.at), lambda: _plan(edges, function.at))
    walk = plan.walk
    inputs = [prepare(given, arrays[given.name], walk, edges) for given in function.inputs]
    in_order = frozenset(given.name for given, (_, ordered) in zip(function.inputs, inputs, strict=True) if ordered)
    kernel = _kernel(function, in_order, into is not None)
    outs, slots = targets(kernel.results, walk, into, num_totals=1), []
    for result, out in zip(kernel.results, outs, strict=True):
        num_slots = (plan.cut.totals if result.rows == "item" else plan.cut.rows).num_slots
        # Items write their partial results to the first slots.
        slots.append(out.new_empty(max(1, num_slots), *result.shape))
    args: list[object] = [plan.cut.items, walk.indptr, walk.indices]
    if function.at == "src":
        # Edges that come without ids are of passes that read none.
        args.append(walk.indices if walk.edge_ids is None else walk.edge_ids)
    # Always 32 bits, so that no seed compiles the kernel anew.
    args.append((seed & 0xFFFFFFFF) - ((seed & 0x80000000) << 1))
    for given, (array, _) in zip(function.inputs, inputs, strict=True):
        args += [array] if given.side == "param" else [array, array.stride(0)]
    for result, out, slot in zip(kernel.results, outs, slots, strict=True):
        args += {"row": [out, slot], "edge": [out], "item": [slot]}[result.rows]
    if into is not None:
        if plan.cut.rows.levels:
            fill_neutral(function, slots)
        args.append(edge_offset)
        args += [copy for number in kernel.shared for copy in (outs[number].clone(), slots[number].clone())]
    with torch.cuda.device_of(plan.cut.items):
        kernel.launch(len(plan.cut.items), args)
        if into is None:
            merge_rows(function, outs, slots, plan.cut.rows.levels)
        else:
            merge_more_rows(function, outs, slots, plan.cut.rows.levels, plan.cut.split_rows)
        for result, out, slot in zip(kernel.results, outs, slots, strict=True):
            if result.rows == "item":
                merge_total(out, slot, plan.cut.totals.levels)
    outs = [out[0] if result.rows == "item" else out for result, out in zip(kernel.results, outs, strict=True)]
    if into is not None:
        return add_totals(kernel.results, outs, into)
    name_edges(function, outs, walk)
    return tuple(outs)


def source_of(function: EdgeFunction, *, continued: bool = False) -> str:
    """The source of a function's kernel, or of the one that continues, for edge data in CSC order."""
    return emit(function, continued=continued)


def set_cut(edges: Edges, at: str, cut: Cut) -> None:
    """Have passes over edges use a cut that was made before, on the host, so that they need not wait for it.

    Args:
        edges: with out-edges, where ``at`` is "src".
        at: "dst" or "src".
        cut: of these edges, on their device.
    """
    edges.derived(("used rows", at), lambda: cut.used_rows)
    edges.derived(_key(at), lambda: _Plan(walk=walk_by(edges, at, cut.work), cut=cut))


def _key(at: str) -> object:
    return ("edge pass", "gpu", at)


def _plan(edges: Edges, at: str) -> _Plan:
    cut = cut_of(edges, at).mapped(lambda array: array.to(edges.device))
    return _Plan(walk=walk_by(edges, at, cut.work), cut=cut)


def _kernel(function: EdgeFunction, in_order: frozenset[str], continued: bool) -> Kernel:
    kernels = _KERNELS.setdefault(function, {})
    if (in_order, continued) not in kernels:
        kernels[in_order, continued] = compile_kernel(function, in_order, continued=continued)
    return kernels[in_order, continued]

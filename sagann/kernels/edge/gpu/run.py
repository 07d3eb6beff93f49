"""Run an edge function on a CUDA device: generate its kernel on first use, launch the kernel, merge cut rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.gpu.compiled import kernel_of
from sagann.kernels.edge.gpu.cut import Cut, cut_of
from sagann.kernels.edge.gpu.emit import emit
from sagann.kernels.edge.gpu.layout import supports
from sagann.kernels.edge.gpu.merge import merge_more_rows, merge_rows, merge_total
from sagann.kernels.edge.kinds import lanes
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.edge.walk import (
    Walk,
    check_into,
    fill_neutral,
    finished,
    prepared,
    targets,
    walk_over,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """A topology's edges for passes on the device; made once, so that no later pass waits for the host."""

    walk: Walk
    "The edges."
    cut: Cut
    "The cut, on the device."


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

    Raises:
        ValueError: the function cannot be a Triton kernel (:func:`sagann.kernels.edge.gpu.supports`).
    """
    if reason := supports(function):
        raise ValueError(f"This edge function cannot run as one Triton kernel: {reason}. Run it over edge tiles.")
    if edges.num_edges == 0 or any(lanes(value) == 0 for value in function.values):
        return naive.run(function, edges, arrays, seed=seed, into=into, edge_offset=edge_offset)
    check_into(function, edges, into, edge_offset)
    plan: _Plan = edges.derived(_key(function.at), lambda: _plan(edges, function.at))
    walk, cut = plan.walk, plan.cut
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
        kernel.launch(len(cut.items), args)
        if into is None:
            merge_rows(function, outs, slots, cut.rows.levels)
        else:
            merge_more_rows(function, outs, slots, cut.rows.levels, cut.split_rows)
        for number, result in enumerate(kernel.results):
            if result.rows == "item":
                merge_total(outs[number], slots[number], cut.totals.levels)
                outs[number] = outs[number][0]
    return finished(kernel.results, outs, walk, into)


def source_of(function: EdgeFunction, *, continued: bool = False) -> str:
    """The source of a function's kernel, or of the one that continues, for edge data in CSC order."""
    return emit(function, continued=continued)


def set_cut(edges: Edges, at: str, cut: Cut) -> None:
    """Give edges a cut that was made on the host beforehand, so that their passes do not wait for the offsets.

    Args:
        edges: the edges; with CSR, where ``at`` is "src".
        at: "dst" or "src".
        cut: the cut of these edges, on their device.
    """
    edges.derived(("used rows", at), lambda: cut.used_rows)
    edges.derived(_key(at), lambda: _Plan(walk=walk_over(edges, at, cut.work), cut=cut))


def _key(at: str) -> object:
    return ("edge pass", "gpu", at)


def _plan(edges: Edges, at: str) -> _Plan:
    cut = cut_of(edges, at).mapped(lambda array: array.to(edges.device))
    return _Plan(walk=walk_over(edges, at, cut.work), cut=cut)

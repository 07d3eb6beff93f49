"""Run an edge function on the CPU: compile its kernel on first use, run the kernel on threads, merge cut rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sagann.kernels.edge import naive
from sagann.kernels.edge.cpu.emit import emit
from sagann.kernels.edge.cpu.expressions import Form
from sagann.kernels.edge.cpu.launch import compile_source, launch
from sagann.kernels.edge.cpu.merge import merge_slots
from sagann.kernels.edge.cpu.writers import WRITERS
from sagann.kernels.edge.divide import divide
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.kinds import KINDS, is_empty, once, reduced_results, results_of
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.edge.source import canonical_source
from sagann.kernels.edge.walk import (
    Walk,
    fill_neutral,
    finished,
    offsets_of,
    prepared,
    targets,
    walk_over,
)
from sagann.kernels.edge.work import HOST_GRAIN
from sagann.kernels.memory import empty

_INDEX_KINDS = {torch.int16: "i2", torch.int32: "i4", torch.int64: "i8"}


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

    Results are bitwise the same for any number of threads. Half precision is accumulated, and returned, in float32.
    A function without a kernel runs in plain PyTorch. Not differentiable.
    """
    has_writers = all(output.reduce in WRITERS for output in function.outputs)
    if edges.num_edges == 0 or is_empty(function) or not has_writers:
        return naive.run(function, edges, arrays, seed=seed, into=into, edge_offset=edge_offset)
    walk = walk_of(edges, function.at)
    inputs, in_order = prepared(function, arrays, walk, edges)
    form = Form(
        index_kind=_INDEX_KINDS[walk.indices.dtype],
        id_kind=KINDS[walk.id_dtype],
        stored=tuple(KINDS[array.dtype] for array in inputs),
        in_order=in_order,
        into_id_kind=None if into is None else _id_kind(function, into),
        offset_kind=_INDEX_KINDS[walk.indptr.dtype],
    )
    results = results_of(function)
    runs, num_slots = walk.work.runs, walk.work.num_slots
    outs = targets(results, walk, into, num_totals=len(runs) - 1)
    for result, out in zip(results, outs, strict=True):
        if result.rows == "item":
            out.zero_()
    # Only rows are cut into pieces.
    slots = [
        empty((num_slots if result.rows == "row" else 0, *out.shape[1:]), out.dtype)
        for result, out in zip(results, outs, strict=True)
    ]
    if into is not None:
        fill_neutral(results, slots)
    args = [runs.ctypes.data, len(runs) - 1, walk.work.items.ctypes.data]
    args += [walk.indptr.data_ptr(), walk.indices.data_ptr()]
    args += [0 if walk.edge_ids is None else walk.edge_ids.data_ptr(), seed]
    for given, array in zip(function.inputs, inputs, strict=True):
        args += [array.data_ptr(), 0 if given.side == "param" else array.stride(0)]
    for out, slot in zip(outs, slots, strict=True):
        args += [out.data_ptr(), slot.data_ptr()]
    args += [] if into is None else [edge_offset]
    launch(_kernel_of(function, form), args, num_items=len(runs) - 1)
    if num_slots:
        merge_slots(function, outs, slots, walk.work, continued=into is not None)
    # One thread sums, in the runs' order. PyTorch's order would depend on the number of threads.
    outs = [
        torch.from_numpy(np.asarray(out.numpy().sum(0))) if result.rows == "item" else out
        for result, out in zip(results, outs, strict=True)
    ]
    return finished(results, outs, walk, into)


@once
def _kernels(function: EdgeFunction) -> dict[Form, int]:
    """Addresses of a function's kernels, by form of the arrays."""
    return {}


def _kernel_of(function: EdgeFunction, form: Form) -> int:
    """Address of a function's kernel, which is emitted and compiled, or loaded from the cache folder, at the first call."""
    kernels = _kernels(function)
    if form not in kernels:
        source = canonical_source(
            function, form.in_order, lambda named, in_order: emit(named, replace(form, in_order=in_order))
        )
        kernels[form] = compile_source(source)
    return kernels[form]


def source_of(function: EdgeFunction, *, continued: bool = False) -> str:
    """The source of a function's kernel for arrays of the stated types and 32-bit ids, with the function's own names.

    A kernel that runs is compiled from this source with canonical names.
    """
    stored = tuple(KINDS[given.dtype] for given in function.inputs)
    form = Form(index_kind="i4", id_kind="i4", stored=stored, into_id_kind="i4" if continued else None)
    return emit(function, form)


def _id_kind(function: EdgeFunction, into: Sequence[Tensor]) -> str:
    """Kind of the ids of edges in earlier results; any kind where they hold no ids."""
    pairs = zip(reduced_results(function), into, strict=True)
    return next((KINDS[given.dtype] for result, given in pairs if result.dtype is None), "i4")


def walk_of(edges: Edges, at: str) -> Walk:
    """The walk over edges grouped at "dst" or "src", divided into work items; made at the first call, then kept."""
    walk: Walk = edges.derived(("edge pass", "cpu", at), lambda: _walk(edges, at))
    return walk


def _walk(edges: Edges, at: str) -> Walk:
    return walk_over(edges, at, divide(offsets_of(edges, at).cpu().numpy(), HOST_GRAIN))

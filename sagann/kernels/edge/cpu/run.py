"""Run an edge function on the CPU: compile its kernel on first use, run the kernel on threads, merge cut rows.

Partial results of rows that were cut into several work items are merged neighbours first. Every reduction has a compiled merge: a pass has few cut
rows, and the merges of the records, a dozen of PyTorch's operators for every round of the tree, would take a fifth of a pass over a small graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sagann.jit import compiled
from sagann.kernels.edge import naive
from sagann.kernels.edge.cpu.emit import Form, emit
from sagann.kernels.edge.cpu.launch import compile_source, launch
from sagann.kernels.edge.cpu.writers import WRITERS
from sagann.kernels.edge.divide import divide
from sagann.kernels.edge.function import KINDS, EdgeFunction, End, merged_results
from sagann.kernels.edge.pass_edges import Edges, fill_neutral, finished, grouped, prepared, targets
from sagann.kernels.edge.source import canonical_source
from sagann.kernels.edge.work import HOST_GRAIN, Work
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
    if edges.num_edges == 0 or function.is_empty or not has_writers:
        return naive.run(function, edges, arrays, seed=seed, into=into, edge_offset=edge_offset)
    pass_edges, work = grouped(edges, function.at), work_of(edges, function.at)
    inputs, in_order = prepared(function, arrays, edges)
    form = Form(
        index_kind=_INDEX_KINDS[pass_edges.indices.dtype],
        id_kind=KINDS[pass_edges.id_dtype],
        stored=tuple(KINDS[array.dtype] for array in inputs),
        in_order=in_order,
        into_id_kind=None if into is None else _id_kind(function, into),
        offset_kind=_INDEX_KINDS[pass_edges.indptr.dtype],
    )
    results, runs, num_slots = function.results, work.runs, work.num_slots
    outs = targets(results, pass_edges, into, num_totals=len(runs) - 1)
    totals = [number for number, result in enumerate(results) if result.rows == "item"]
    for number in totals:
        outs[number].zero_()
    # A kernel writes to slots only for rows that are cut.
    slots = outs
    if num_slots:
        # Only results with a row per group are cut.
        rows = [num_slots if result.rows == "row" else 0 for result in results]
        slots = [empty((n, *out.shape[1:]), out.dtype) for n, out in zip(rows, outs, strict=True)]
        if into is not None:
            fill_neutral(results, slots)
    args = [runs.ctypes.data, len(runs) - 1, work.items.ctypes.data]
    args += [pass_edges.indptr.data_ptr(), pass_edges.indices.data_ptr()]
    args += [0 if pass_edges.edge_ids is None else pass_edges.edge_ids.data_ptr(), seed]
    for given, array in zip(function.inputs, inputs, strict=True):
        args += [array.data_ptr(), 0 if given.side == "param" else array.stride(0)]
    for out, slot in zip(outs, slots, strict=True):
        args += [out.data_ptr(), slot.data_ptr()]
    args += [] if into is None else [edge_offset]
    launch(_kernel_of(function, form), args, num_items=len(runs) - 1)
    if num_slots:
        merge_slots(function, outs, slots, work, continued=into is not None)
    for number in totals:
        # One thread sums, in the runs' order. PyTorch's order would depend on the number of threads.
        outs[number] = torch.from_numpy(np.asarray(outs[number].numpy().sum(0)))
    return finished(results, outs, pass_edges, into)


def _kernel_of(function: EdgeFunction, form: Form) -> int:
    """Address of a function's kernel, which is emitted and compiled, or loaded from the cache folder, at the first call."""

    def emitted(named: EdgeFunction, in_order: frozenset[str]) -> str:
        return emit(named, form._replace(in_order=in_order))

    address: int = function.derived(
        form, lambda: compile_source(canonical_source(function, form.in_order, emitted))
    )
    return address


def source_of(function: EdgeFunction) -> str:
    """The source of a function's kernel for arrays of the stated types and 32-bit ids, with the function's own names.

    A kernel that runs is compiled from this source with canonical names.
    """
    stored = tuple(KINDS[given.dtype] for given in function.inputs)
    return emit(function, Form(index_kind="i4", id_kind="i4", stored=stored))


def _id_kind(function: EdgeFunction, into: Sequence[Tensor]) -> str:
    """Kind of the ids of edges in earlier results; any kind where they hold no ids."""
    pairs = zip(function.reduced_results, into, strict=True)
    return next((KINDS[given.dtype] for result, given in pairs if result.dtype is None), "i4")


def work_of(edges: Edges, at: End) -> Work:
    """The work items of a pass over edges grouped at "dst" or "src"; divided at the first call, then kept."""
    pass_edges = grouped(edges, at)
    work: Work = pass_edges.derived("work", lambda: divide(pass_edges.indptr.cpu().numpy(), HOST_GRAIN))
    return work


Array = NDArray[Any]
State = tuple[Array, ...]
"The tensors of a state, [rows, lanes] each."

# A merge takes the rows to merge into, the rows to merge, and both states. Row ``rows[i]`` takes in row ``part_rows[i]``.


@compiled()
def _sums(rows: Array, part_rows: Array, state: State, part: State) -> None:
    (total,), (more,) = state, part
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(total.shape[1]):
            total[row, lane] += more[other, lane]


@compiled()
def _extrema(largest: bool, rows: Array, part_rows: Array, state: State, part: State) -> None:
    (best, edge), (values, where) = state, part
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(best.shape[1]):
            known, value = best[row, lane], values[other, lane]
            beyond = value > known if largest else value < known
            equal = value == known or (value != value and known != known)
            beyond = beyond or (value != value and known == known)
            earlier = where[other, lane] < edge[row, lane]
            if where[other, lane] >= 0 and (edge[row, lane] < 0 or beyond or (equal and earlier)):
                best[row, lane], edge[row, lane] = value, where[other, lane]


@compiled()
def _moments(rows: Array, part_rows: Array, state: State, part: State) -> None:
    (spread, mean, count), (more_spread, more_mean, more_count) = state, part
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        known, more = count[row, 0], more_count[other, 0]
        share = more / max(known + more, 1)
        for lane in range(mean.shape[1]):
            distance = more_mean[other, lane] - mean[row, lane]
            spread[row, lane] += more_spread[other, lane] + distance * (distance * (share * known))
            mean[row, lane] += distance * share
        count[row, 0] = known + more


@compiled()
def _products(rows: Array, part_rows: Array, state: State, part: State) -> None:
    (product, zeros), (more, more_zeros) = state, part
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(product.shape[1]):
            product[row, lane] *= more[other, lane]
            zeros[row, lane] += more_zeros[other, lane]


@compiled()
def _softmax(rows: Array, part_rows: Array, state: State, part: State) -> None:
    (mean, top, weight), (more_mean, peak, share) = state, part
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        per_score = mean.shape[1] // top.shape[1]
        for score in range(top.shape[1]):
            highest = np.maximum(top[row, score], peak[other, score])
            # Rows without edges have the exponent -inf - -inf.
            known = weight[row, score] * np.exp(top[row, score] - highest) if weight[row, score] != 0 else 0.0
            more = share[other, score] * np.exp(peak[other, score] - highest) if share[other, score] != 0 else 0.0
            for lane in range(score * per_score, (score + 1) * per_score):
                if known + more == 0:
                    mean[row, lane] += more_mean[other, lane]
                    continue
                # A mean of weight 0 may be 0 / 0.
                kept = mean[row, lane] * known if known != 0 else 0.0
                added = more_mean[other, lane] * more if more != 0 else 0.0
                mean[row, lane] = (kept + added) / (known + more)
            top[row, score], weight[row, score] = highest, known + more


MERGES: Mapping[str, Callable[..., None]] = {
    "sum": _sums,
    "max": partial(_extrema, True),
    "min": partial(_extrema, False),
    "softmax": _softmax,
    "moments": _moments,
    "product": _products,
}
"Compiled merges by the name of the reduction."


def merge_slots(
    function: EdgeFunction, outs: Sequence[Tensor], slots: Sequence[Tensor], work: Work, *, continued: bool
) -> None:
    """Write the rows of ``work.split_rows`` to ``outs``, [num_rows, ...], or merge them with the earlier results there.

    ``slots`` are the partial results, [num_slots, ...], those of a row side by side. They are overwritten.
    """
    left, right = _neighbours_first(work.split_indptr)
    rows, first = work.split_rows, work.split_indptr[:-1]
    for reduction, here in merged_results(function):
        merge, results, parts = MERGES[reduction.name], _flat(outs[here]), _flat(slots[here])
        merge(left, right, parts, parts)
        if continued:
            merge(rows, first, results, parts)
        else:
            for result, part in zip(results, parts, strict=True):
                result[rows] = part[first]


def _flat(tensors: Sequence[Tensor]) -> State:
    return tuple(tensor.numpy().reshape(len(tensor), -1) for tensor in tensors)


@compiled()
def _neighbours_first(split_indptr: Array) -> tuple[Array, Array]:
    """Pairs of slots to merge, in order: the slot that takes in, and the other. A row's first slot ends with the whole row."""
    num_merges = split_indptr[-1] - (len(split_indptr) - 1)
    left, right = np.empty(num_merges, np.int64), np.empty(num_merges, np.int64)
    count = 0
    for split in range(len(split_indptr) - 1):
        first, last = split_indptr[split], split_indptr[split + 1]
        step = 1
        while first + step < last:
            for slot in range(first, last - step, 2 * step):
                left[count], right[count] = slot, slot + step
                count += 1
            step *= 2
    return left, right

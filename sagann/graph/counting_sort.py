"""Stable counting sort, in parallel: a list of edges becomes CSC, and CSC becomes CSR.

There are two passes, so that neither has a cache miss at every edge. The first pass distributes the edges over about a
thousand buckets by the high bits of their key. Every thread owns a slice of the edges, counts it, and writes it behind
the slices before it. The second pass sorts each bucket by the low bits, with counters and output small enough for the
cache. Every thread owns ranges of buckets with about equal numbers of edges. Both passes keep the order of equal keys,
so the result does not depend on the number of threads. All write positions have 64 bits.

One thread sorts by the whole key in one pass: where the list is short, or other threads have work of their own.

Memory beside the output: a second copy of values and positions, and 2 bytes per edge (4 above 2^26 keys).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numba import prange
from torch import Tensor

from sagann.graph.rows import id_dtype
from sagann.jit import Array, compiled, pytorch_threads

# High bits distinguish up to 2^10 buckets: few enough that their write positions stay in the cache and their
# pages in the translation buffer, many enough that the counters of one bucket fit the second-level cache.
BUCKET_BITS = 10
# Up to this number of items one thread sorts them in one pass: to start more threads would take longer than the work.
ITEMS_PER_THREAD = 1 << 15

# An array or None. For None, Numba compiles the function without the lines that use the array.
MaybeArray: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Grouped:
    """Items grouped by key, in their order within a key."""

    indptr: Tensor
    "int64 [num_keys + 1]: the items of key k are indptr[k] to indptr[k + 1] - 1."
    values: Tensor
    "Values [N], grouped by key; empty if the caller gave no values."
    positions: Tensor
    "Former position of each item, int32 (int64 from 2^31 items on) [N]; empty if the caller wanted no positions."

    @classmethod
    def of(cls, indptr: Tensor, values: Tensor | None, positions: Tensor | None) -> Grouped:
        """The items, with empty arrays for None."""
        none = indptr.new_empty(0, dtype=torch.int32)
        given = (none if each is None else each for each in (values, positions))
        return cls(indptr, *given)


def group_by_key(
    keys: Tensor,
    num_keys: int,
    *,
    values: Tensor | None = None,
    value_dtype: torch.dtype | None = None,
    positions: bool = False,
    parallel: bool = True,
) -> Grouped:
    """Sort items by an integer key, stably, with their values, their positions, or both.

    Takes O(items + keys) time, several times less than ``torch.sort``. Keys and values are int32 or int64 [N]; values
    are converted to ``value_dtype``. Keys must be in ``[0, num_keys)``; this is not checked. Not ``parallel``, the calling thread sorts them.
    """
    if keys.device.type != "cpu":
        return _group_on_device(keys, num_keys, values, value_dtype, positions)
    num_items = len(keys)
    indptr = torch.zeros(num_keys + 1, dtype=torch.int64, device="cpu")
    out_values = None if values is None else _new(num_items, value_dtype or values.dtype)
    out_positions = _new(num_items, id_dtype(num_items)) if positions else None
    if num_items <= ITEMS_PER_THREAD or not parallel:
        _sort_bucket(
            keys.contiguous().numpy(),
            _array(values),
            None,
            0,
            num_items,
            np.empty(num_keys, dtype=np.int64),
            indptr.numpy()[1:],
            _array(out_values),
            _array(out_positions),
        )
    else:
        shift = max(0, (num_keys - 1).bit_length() - BUCKET_BITS)
        with pytorch_threads() as threads:
            _sort(
                keys.contiguous().numpy(),
                _array(values),
                shift,
                min(threads, -(-num_items // ITEMS_PER_THREAD)),
                np.empty(num_items, dtype=np.uint16 if shift <= 16 else np.uint32),
                _scratch(out_values),
                _scratch(out_positions),
                indptr.numpy(),
                _array(out_values),
                _array(out_positions),
            )
    return Grouped.of(indptr, out_values, out_positions)


def _new(num_items: int, dtype: torch.dtype) -> Tensor:
    # NumPy asks the system for huge pages and torch does not. Faults of small pages would take a tenth of the time.
    return torch.from_numpy(np.empty(num_items, dtype=np.int32 if dtype == torch.int32 else np.int64))


def _array(tensor: Tensor | None) -> Array | None:
    # Contiguous, because Numba would compile again for every other layout.
    return None if tensor is None else tensor.contiguous().numpy()


def _scratch(like: Tensor | None) -> Array | None:
    return None if like is None else np.empty_like(like.numpy())


def _group_on_device(
    keys: Tensor, num_keys: int, values: Tensor | None, value_dtype: torch.dtype | None, positions: bool
) -> Grouped:
    # Numba's kernels run on the host; a GPU has a fast radix sort of its own.
    in_order, order = torch.sort(keys, stable=True)
    # A count of each key would make the host wait.
    return Grouped.of(
        torch.searchsorted(in_order, torch.arange(num_keys + 1, dtype=keys.dtype, device=keys.device)),
        None if values is None else values[order].to(value_dtype or values.dtype),
        order.to(id_dtype(len(keys))) if positions else None,
    )


@compiled(parallel=True)
def _sort(
    keys: Array,
    values: MaybeArray,
    shift: int,
    num_slices: int,
    low_keys: Array,
    mid_values: MaybeArray,
    mid_positions: MaybeArray,
    indptr: Array,
    out_values: MaybeArray,
    out_positions: MaybeArray,
) -> None:
    num_items = len(keys)
    num_buckets = ((len(indptr) - 2) >> shift) + 1
    bounds = np.empty(num_slices + 1, dtype=np.int64)
    for s in range(num_slices + 1):
        bounds[s] = num_items * s // num_slices

    # First pass, by the key without its `shift` lowest bits: heads[s, b] is where slice s writes its next item of bucket b.
    heads = np.zeros((num_slices, num_buckets), dtype=np.int64)
    for s in prange(num_slices):
        for e in range(bounds[s], bounds[s + 1]):
            heads[s, np.uint64(keys[e]) >> np.uint64(shift)] += 1
    # Buckets are contiguous; within a bucket, items of earlier slices come first.
    bucket_ends = np.empty(num_buckets, dtype=np.int64)
    total = 0
    for b in range(num_buckets):
        for s in range(num_slices):
            count = heads[s, b]
            heads[s, b] = total
            total += count
        bucket_ends[b] = total
    for s in prange(num_slices):
        _distribute(keys, values, bounds[s], bounds[s + 1], shift, heads[s], low_keys, mid_values, mid_positions)

    # Second pass: tasks are ranges of buckets that end nearest to equal shares of the items.
    num_tasks = min(num_buckets, 4 * num_slices)
    task_bounds = np.zeros(num_tasks + 1, dtype=np.int64)
    for t in range(1, num_tasks):
        task_bounds[t] = np.searchsorted(bucket_ends, num_items * t // num_tasks, side="right")
    task_bounds[num_tasks] = num_buckets
    for t in prange(num_tasks):
        counters = np.empty(1 << shift, dtype=np.int64)
        for b in range(task_bounds[t], task_bounds[t + 1]):
            begin = bucket_ends[b - 1] if b else 0
            key_begin = b << shift
            key_end = min((b + 1) << shift, len(indptr) - 1)
            _sort_bucket(
                low_keys,
                mid_values,
                mid_positions,
                begin,
                bucket_ends[b],
                counters,
                indptr[key_begin + 1 : key_end + 1],
                out_values,
                out_positions,
            )


@compiled()
def _distribute(
    keys: Array,
    values: MaybeArray,
    begin: int,
    end: int,
    shift: int,
    heads: Array,
    low_keys: Array,
    mid_values: MaybeArray,
    mid_positions: MaybeArray,
) -> None:
    mask = (np.uint64(1) << np.uint64(shift)) - np.uint64(1)
    for e in range(begin, end):
        key = np.uint64(keys[e])
        bucket = key >> np.uint64(shift)
        at = np.uint64(heads[bucket])
        heads[bucket] = at + np.uint64(1)
        low_keys[at] = key & mask
        if values is not None:
            mid_values[at] = values[e]
        if mid_positions is not None:
            mid_positions[at] = e


@compiled()
def _sort_bucket(
    keys: Array,
    values: MaybeArray,
    positions: MaybeArray,
    begin: int,
    end: int,
    counters: Array,
    ends: Array,
    out_values: MaybeArray,
    out_positions: MaybeArray,
) -> None:
    counters[: len(ends)] = 0
    for e in range(begin, end):
        counters[np.uint64(keys[e])] += 1
    total = begin
    for k in range(len(ends)):
        count = counters[k]
        counters[k] = total
        total += count
        ends[k] = total
    for e in range(begin, end):
        key = np.uint64(keys[e])
        at = np.uint64(counters[key])
        counters[key] = at + np.uint64(1)
        if values is not None:
            out_values[at] = values[e]
        if out_positions is not None:
            if positions is None:
                out_positions[at] = e
            else:
                out_positions[at] = positions[e]

"""Merge multi-edges within a part of the edges that fits memory.

The rules are those of :func:`sagann.graph.transform.coalesce` and ``symmetrise``: weights are summed, edges of
different types are not merged, and other edge data is that of the first edge. A mirror image is dropped if the source
has an equal edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sagann.errors import DatasetError
from sagann.graph.checks import first_of_equals
from sagann.storage.rows import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeRules:
    """Columns of edge data with a special rule; None for a column that the edges do not have."""

    weight: int | None = None
    "Index of the column of weights, which are summed."
    edge_type: int | None = None
    "Index of the column of types: edges of different types are not merged."
    mirror: int | None = None
    "Index of the column that is 1 for mirror images, else 0."


def merge_pairs(src: Array, dst: Array, first_dst: int, num_dst: int, num_vertices: int) -> tuple[Array, Array]:
    """Merge multi-edges without edge data, whose destinations are ``first_dst`` to ``first_dst + num_dst - 1``.

    Returns int64 offsets [num_dst + 1], and the sources grouped by destination, ascending.
    """
    bits = max(1, (num_vertices - 1).bit_length())
    assert bits + num_dst.bit_length() <= 64
    keys = dst.astype(np.uint64)
    keys -= np.uint64(first_dst)
    keys <<= np.uint64(bits)
    keys |= src.astype(np.uint64)
    # Plain sorting of 64-bit integers is vectorised in numpy: faster than a counting sort that must then sort
    # each destination's sources.
    keys.sort()
    keys = keys[first_of_equals([keys])]
    starts = np.arange(num_dst + 1, dtype=np.uint64) << np.uint64(bits)
    offsets = np.searchsorted(keys, starts)
    keys &= np.uint64((1 << bits) - 1)
    return offsets, keys.astype(src.dtype)


def merge_with_data(
    src: Array, dst: Array, data: Sequence[Array], rules: MergeRules
) -> tuple[Array, Array, list[Array]]:
    """Merge multi-edges with edge data. An edge and an equal mirror image both stay, for :func:`drop_mirrored`.

    Returns sources, destinations and edge data, ascending by destination, source and type; a mirror image comes after
    the equal edge.
    """
    keys: list[Array] = [src, dst]
    for column in (rules.edge_type, rules.mirror):
        if column is not None:
            keys.insert(0, data[column])
    order = np.lexsort(keys)
    first = first_of_equals([key[order] for key in keys])
    starts = np.flatnonzero(first)
    kept = order[starts]
    merged = [column[kept] for column in data]
    if rules.weight is not None and len(starts):
        with np.errstate(over="ignore"):
            sums = np.add.reduceat(data[rules.weight][order], starts, axis=0)
        _refuse_overflow(sums, src[kept], dst[kept])
        merged[rules.weight] = sums
    return src[kept], dst[kept], merged


def drop_mirrored(
    src: Array, dst: Array, data: Sequence[Array], rules: MergeRules
) -> tuple[Array, Array, list[Array]]:
    """Drop each mirror image that has an equal edge, from the result of :func:`merge_with_data`."""
    keys = [src, dst] + ([data[rules.edge_type]] if rules.edge_type is not None else [])
    first = first_of_equals(keys)
    return src[first], dst[first], [column[first] for column in data]


def _refuse_overflow(sums: Array, src: Array, dst: Array) -> None:
    beyond = ~np.isfinite(sums)
    if beyond.any():
        at = int(beyond.argmax())
        raise DatasetError(
            f"weights of a multi-edge add up to too much: {src[at]} -> {dst[at]}, beyond "
            f"{np.finfo(sums.dtype).max:.3g}, the largest {sums.dtype} (in edge weights)",
            hint="Scale the weights, or import without merging multi-edges.",
        )

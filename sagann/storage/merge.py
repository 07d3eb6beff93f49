"""Merge multi-edges within a part of the edges that fits memory.

The rules are those of :func:`sagann.graph.transform.coalesce` and ``symmetrise``: weights are summed, edges of
different types are not merged, and other edge data is that of the first edge. A mirror image is dropped if the source
has an equal edge.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sagann.errors import DatasetError
from sagann.graph.checks import first_of_equals
from sagann.storage.rows import Array

MIRROR = "is mirror"
"Name of the column that is 1 for mirror images, else 0; no edge data has this name."


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


def merge_with_data(src: Array, dst: Array, data: Mapping[str, Array]) -> tuple[Array, Array, dict[str, Array]]:
    """Merge multi-edges with edge data by name. An edge and an equal mirror image both stay, for :func:`drop_mirrored`.

    Returns sources, destinations and edge data, ascending by destination, source and type; a mirror image comes after
    the equal edge.
    """
    keys = [data[name] for name in (MIRROR, "type") if name in data] + [src, dst]
    order = np.lexsort(keys)
    first = first_of_equals([key[order] for key in keys])
    starts = np.flatnonzero(first)
    kept = order[starts]
    merged = {name: column[kept] for name, column in data.items()}
    if "weight" in data and len(starts):
        with np.errstate(over="ignore"):
            merged["weight"] = np.add.reduceat(data["weight"][order], starts, axis=0)
        _refuse_overflow(merged["weight"], src[kept], dst[kept])
    return src[kept], dst[kept], merged


def drop_mirrored(src: Array, dst: Array, data: Mapping[str, Array]) -> tuple[Array, Array, list[Array]]:
    """Drop each mirror image that has an equal edge, from the result of :func:`merge_with_data`."""
    first = first_of_equals([src, dst] + [data[name] for name in data if name == "type"])
    return src[first], dst[first], [column[first] for column in data.values()]


def _refuse_overflow(sums: Array, src: Array, dst: Array) -> None:
    beyond = ~np.isfinite(sums)
    if beyond.any():
        at = int(beyond.argmax())
        raise DatasetError(
            f"weights of a multi-edge add up to too much: {src[at]} -> {dst[at]}, beyond "
            f"{np.finfo(sums.dtype).max:.3g}, the largest {sums.dtype} (in edge weights)",
            hint="Scale the weights, or import without merging multi-edges.",
        )

"""Edges sorted by destination in bounded memory: any number of edges become CSC on disk.

The import writes all edges to a spool, with a coarse histogram of their destinations. The destinations are cut into parts of
consecutive ids, each of which fits memory. The spool is split into one temporary file for each part, and the parts are sorted and
appended one after the other. A part that is too large is split again by a histogram of its own, a single destination by its sources. The
result equals a stable sort of all edges by destination, then by source.

Working memory is ``memory_bytes``. Temporary files take up to twice the size of the spool, with mirror images three times.

Multi-edges are merged as by :func:`sagann.graph.transform.coalesce` and ``symmetrise``: weights are summed, edges of different types
are not merged, and other edge data is that of the first edge. A mirror image is dropped if the source has an equal edge.

References:
    The distribution sort of Vitter, External Memory Algorithms and Data Structures, ACM Computing Surveys
    33(2), 2001, Sec. 5.1, with buckets chosen by counting instead of sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import torch

from sagann.errors import DatasetError
from sagann.graph.checks import first_of_equals
from sagann.graph.counting_sort import group_by_key
from sagann.graph.row_sort import sort_rows
from sagann.graph.rows import id_dtype
from sagann.import_config import Progress
from sagann.storage.edge_spool import EdgeRun, EdgeSpool, Histogram
from sagann.storage.import_source import Dtype
from sagann.storage.npy import ArraySpec, NpyWriter, dtype_name
from sagann.storage.rows import Array

# Largest number of parts in one split. More parts would need more open files and smaller writes.
_MAX_PARTS = 128
# Working memory in bytes for each destination of a part: its offset, its counter in the sort, and the offset to write.
_BYTES_PER_DST = 24
_MIRROR = "is mirror"
"Name of the column that is 1 for mirror images, else 0; no edge data has this name."


class ExternalSort:
    """Sort a spool into CSC, and remove the spool's file.

    Multi-edges are merged if ``merge`` is set or the spool has mirror images.
    """

    def __init__(
        self,
        spool: EdgeSpool,
        *,
        num_vertices: int,
        merge: bool,
        memory_bytes: int,
        open_array: Callable[..., NpyWriter],
        progress: Progress,
    ) -> None:
        self._spool = spool
        self._num_vertices = num_vertices
        self._merge = merge or spool.mirrors
        self._memory_bytes = memory_bytes
        self._open = open_array
        self._progress = progress
        self._num_written = 0
        self._num_sorted = 0
        self._num_edges = spool.run.num_edges * (2 if spool.mirrors else 1)
        # Mirror images are marked only if there is edge data: without edge data, an edge and a mirror image are equal.
        self._mark_mirrors = spool.mirrors and bool(spool.columns)
        data = {**spool.columns, **({_MIRROR: np.dtype("uint8")} if self._mark_mirrors else {})}
        self._names = tuple(data)
        ids = np.dtype("int32" if num_vertices <= 2**31 - 1 else "int64")
        self._columns: tuple[Dtype, ...] = (ids, ids, *data.values())
        record_bytes = sum(column.itemsize for column in self._columns)
        if not self._merge:
            # An edge is in memory as it is read, in the counting sort, and after the sort.
            self._bytes_per_edge = 2 * record_bytes + 2 * ids.itemsize + (8 if data else 2)
        else:
            self._bytes_per_edge = 2 * record_bytes + 40 if data else 2 * ids.itemsize + 20

    def run(self) -> dict[str, ArraySpec]:
        """Sort the edges; return the descriptions of the array files (CSC and edge data) by name."""
        ids = dtype_name(id_dtype(self._num_vertices))
        with ExitStack() as stack:
            self._indptr = stack.enter_context(self._open("indptr", "int64"))
            self._indices = stack.enter_context(self._open("indices", ids))
            self._data = {
                f"edge_{name}": stack.enter_context(self._open(f"edge_{name}", form.base.name, form.shape))
                for name, form in self._spool.columns.items()
            }
            self._indptr.append(np.zeros(1, dtype=np.int64))
            self._sort_all()
            writers = {"indptr": self._indptr, "indices": self._indices, **self._data}
            return {name: writer.finish() for name, writer in writers.items()}

    def _sort_all(self) -> None:
        spool, num_vertices = self._spool, self._num_vertices
        blocks = (marked for block in spool.run.blocks() for marked in self._with_mirrors(block))
        if self._fits(self._num_edges, num_vertices):
            columns = self._load(blocks, self._num_edges)
            spool.run.close()
            self._indptr.append(self._sort_in_memory(columns, 0, num_vertices))
        else:
            parts = self._split(blocks, spool.histogram, num_vertices)
            spool.run.close()
            for part in parts:
                self._sort(*part)

    def _fits(self, num_edges: int, num_dst: int) -> bool:
        return num_edges * self._bytes_per_edge + num_dst * _BYTES_PER_DST <= self._memory_bytes

    def _with_mirrors(self, block: list[Array]) -> Iterator[list[Array]]:
        yield self._marked(block, 0)
        if self._spool.mirrors:
            yield self._marked([block[1], block[0], *block[2:]], 1)

    def _marked(self, block: list[Array], mark: int) -> list[Array]:
        ids = self._columns[0]
        marks = [np.full(len(block[0]), mark, dtype=np.uint8)] if self._mark_mirrors else []
        return [block[0].astype(ids, copy=False), block[1].astype(ids, copy=False), *block[2:], *marks]

    def _sort(self, run: EdgeRun, first: int, stop: int, dst: int | None = None) -> None:
        """Sort and append the in-edges of destinations ``first`` to ``stop - 1``, or those of ``dst`` from such sources; remove their file."""
        low, high = (first, stop) if dst is None else (dst, dst + 1)
        if self._fits(run.num_edges, high - low):
            columns = self._load(run.blocks(), run.num_edges)
            run.close()
            ends = self._sort_in_memory(columns, low, high)
            if dst is None:
                self._indptr.append(ends)
        elif stop - first > 1:
            for part in self._split_again(run, first, stop, by_src=dst is not None):
                self._sort(*part, dst)
        elif dst is None:
            self._sort(run, 0, self._num_vertices, first)
            self._indptr.append(np.array([self._num_written]))
        else:
            self._append_equal(run)
            run.close()

    def _load(self, blocks: Iterator[list[Array]], num_edges: int) -> list[Array]:
        columns, begin = [np.empty(num_edges, dtype=form) for form in self._columns], 0
        for block in blocks:
            for column, part in zip(columns, block, strict=True):
                column[begin : begin + len(part)] = part
            begin += len(block[0])
        return columns

    def _sort_in_memory(self, columns: list[Array], first: int, stop: int) -> Array:
        """Sort and append the in-edges of destinations ``first`` to ``stop - 1``; return where those of each end."""
        num_in = len(columns[0])
        src, dst, *data = columns
        # Nothing else holds the arrays: each goes when it is sorted.
        columns.clear()
        if self._merge and not data:
            offsets, src = _merge_pairs(src, dst, first, stop - first, self._num_vertices)
        elif self._merge:
            src, dst, data = _merge_with_data(src, dst, dict(zip(self._names, data, strict=True)))
            offsets = np.searchsorted(dst, np.arange(first, stop + 1))
        else:
            dst -= dst.dtype.type(first)
            keys, values = torch.from_numpy(dst), torch.from_numpy(src)
            grouped = group_by_key(keys, stop - first, values=values, positions=bool(data))
            sort_rows(grouped.indptr, grouped.values, grouped.positions)
            src, offsets = grouped.values.numpy(), grouped.indptr.numpy()
            data = [column[grouped.positions.numpy()] for column in data]
        ends = offsets[1:] + self._num_written
        self._append(src, data, num_in)
        return ends

    def _append_equal(self, run: EdgeRun) -> None:
        """Append edges with the same ends, block by block: they need no sort, and a merge leaves few of them."""
        merged = self._load(iter(()), 0)
        for block in run.blocks():
            if self._merge:
                src, dst, *data = (np.concatenate(pair) for pair in zip(merged, block, strict=True))
                src, dst, data = _merge_with_data(src, dst, dict(zip(self._names, data, strict=True)))
                merged = [src, dst, *data]
            else:
                self._append(block[0], block[2:], len(block[0]))
        if self._merge:
            self._append(merged[0], merged[2:], run.num_edges)

    def _append(self, src: Array, data: Sequence[Array], num_in: int) -> None:
        """Append the edges that ``num_in`` edges have become."""
        self._indices.append(src)
        # Marks of mirror images, the last column, are not written.
        for writer, column in zip(self._data.values(), data, strict=False):
            writer.append(column)
        self._num_written += len(src)
        self._num_sorted += num_in
        self._progress(self._num_sorted, self._num_edges, "edges", "sorting")

    def _split_again(self, run: EdgeRun, first: int, stop: int, *, by_src: bool) -> list[tuple[EdgeRun, int, int]]:
        """Split a run by a histogram of its own, and remove its file."""
        histogram = Histogram(first, stop)
        for block in run.blocks():
            histogram.add(block[0 if by_src else 1])
        parts = self._split(run.blocks(), histogram, stop, by_src=by_src)
        run.close()
        return parts

    def _split(
        self, blocks: Iterator[list[Array]], histogram: Histogram, stop: int, *, by_src: bool = False
    ) -> list[tuple[EdgeRun, int, int]]:
        """Split edges into one run for each range of destinations, or of sources; return the runs with their ranges.

        Most runs fit memory; the caller splits a larger run again.
        """
        bounds = self._choose_bounds(histogram, 0 if by_src else _BYTES_PER_DST)
        part_of_bin = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
        runs, done = [EdgeRun(self._spool.run.folder) for _ in range(len(bounds) - 1)], 0
        for block in blocks:
            parts = torch.from_numpy(part_of_bin[histogram.bins_of(block[0 if by_src else 1])])
            grouped = group_by_key(parts, len(runs), positions=True, parallel=False)
            columns = [column[grouped.positions.numpy()] for column in block]
            for run, (begin, end) in zip(runs, pairwise(grouped.indptr.tolist()), strict=True):
                run.append([column[begin:end] for column in columns])
            done += len(parts)
            self._progress(done, self._num_edges, "edges", "partitioning")
        limits = [min(stop, histogram.first + (int(bound) << histogram.shift)) for bound in bounds]
        return list(zip(runs, limits[:-1], limits[1:], strict=True))

    def _choose_bounds(self, histogram: Histogram, bytes_per_id: int) -> list[int]:
        """Cut the bins into at most _MAX_PARTS parts that fit memory, if possible; return the bounds of the parts."""
        counts = histogram.counts[: histogram.num_bins]
        costs = np.cumsum(counts * self._bytes_per_edge + (bytes_per_id << histogram.shift))
        # Each part is filled as far as possible, so two neighbours together exceed the limit. Hence the factor 2.
        limit = max(self._memory_bytes, int(2 * costs[-1] // _MAX_PARTS) + 1)
        bounds = [0]
        while bounds[-1] < len(costs):
            begin = bounds[-1]
            spent = int(costs[begin - 1]) if begin else 0
            bounds.append(max(begin + 1, int(np.searchsorted(costs, spent + limit, side="right"))))
        if len(bounds) == 2 and len(costs) > 1:
            bounds.insert(1, len(costs) // 2)
        return bounds


def _merge_pairs(src: Array, dst: Array, first_dst: int, num_dst: int, num_vertices: int) -> tuple[Array, Array]:
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


def _merge_with_data(src: Array, dst: Array, data: Mapping[str, Array]) -> tuple[Array, Array, list[Array]]:
    """Merge multi-edges with edge data by name, and drop each mirror image that has an equal edge.

    Returns sources, destinations and edge data, ascending by destination, source and type.
    """
    mirrors, types = ([data[name]] if name in data else [] for name in (_MIRROR, "type"))
    keys = [*mirrors, *types, src, dst]
    order = np.lexsort(keys)
    starts = np.flatnonzero(first_of_equals([key[order] for key in keys]))
    kept = order[starts]
    merged = {name: column[kept] for name, column in data.items()}
    if "weight" in data and len(starts):
        with np.errstate(over="ignore"):
            merged["weight"] = np.add.reduceat(data["weight"][order], starts, axis=0)
        _refuse_overflow(merged["weight"], src[kept], dst[kept])
    # A mirror image comes after the equal edge.
    first = first_of_equals([key[kept] for key in (*types, src, dst)])
    kept = kept[first]
    return src[kept], dst[kept], [column[first] for column in merged.values()]


def _refuse_overflow(sums: Array, src: Array, dst: Array) -> None:
    beyond = ~np.isfinite(sums)
    if beyond.any():
        at = int(beyond.argmax())
        raise DatasetError(
            f"weights of a multi-edge add up to too much: {src[at]} -> {dst[at]}, beyond "
            f"{np.finfo(sums.dtype).max:.3g}, the largest {sums.dtype} (in edge weights)",
            hint="Scale the weights, or import without merging multi-edges.",
        )

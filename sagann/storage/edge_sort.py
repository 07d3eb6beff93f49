"""Edges sorted by destination in bounded memory: any number of edges become CSC on disk.

The import writes all edges to a spool, with a coarse histogram of their destinations. The destinations are cut into parts of
consecutive ids, each of which fits memory. The spool is split into one temporary file for each part, and the parts are sorted and
appended one after the other. A part that is too large is split again by a histogram of its own; a single destination is sorted in
memory. The result equals a stable sort of all edges by destination, then by source.

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
from pathlib import Path
from tempfile import TemporaryFile
from weakref import finalize

import numpy as np
import torch

from sagann.errors import DatasetError
from sagann.graph.checks import first_of_equals
from sagann.graph.counting_sort import group_by_key
from sagann.graph.row_sort import sort_rows
from sagann.graph.rows import id_dtype
from sagann.import_config import Progress
from sagann.jit import compiled
from sagann.storage.import_source import Dtype, EdgeChunk
from sagann.storage.npy import ArraySpec, NpyWriter, dtype_name
from sagann.storage.rows import Array

_MAX_BINS = 2**20
# Largest number of parts in one split. More parts would need more open files and smaller writes.
_MAX_PARTS = 128
# Working memory in bytes for each destination of a part: its offset, its counter in the sort, and the offset to write.
_BYTES_PER_DST = 24
_MIRROR = "is mirror"
"Name of the column that is 1 for mirror images, else 0; no edge data has this name."


class EdgeRun:
    """A temporary file of edges, without a name, on the disk of ``folder``.

    A block stores its columns one after the other (source ids, destination ids, edge data), so each column of a block is one contiguous
    read. Only the lengths and dtypes of the blocks stay in memory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blocks: list[tuple[int, list[Dtype]]] = []
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115
        # Python warns of a file that is collected open.
        finalize(self, self._file.close)
        self.num_edges = 0

    def append(self, columns: Sequence[Array]) -> None:
        """Append one block, of contiguous columns."""
        for column in columns:
            self._file.write(column.data)
        self._blocks.append((len(columns[0]), [np.dtype((column.dtype, column.shape[1:])) for column in columns]))
        self.num_edges += len(columns[0])

    def blocks(self) -> Iterator[list[Array]]:
        """Read the blocks in the order they were written; a block is a list of columns."""
        self._file.seek(0)
        for count, columns in self._blocks:
            block = [np.empty(count, dtype=form) for form in columns]
            for column in block:
                read = self._file.readinto(column.data)
                assert read == column.nbytes
            yield block

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


class Histogram:
    """Number of edges for each bin of 2^shift consecutive ids. Bin 0 begins at id ``first``.

    The bins cover the ids up to ``stop - 1``; :meth:`cover` extends them. If an id needs more than 2^20 bins, all bins
    double in width, so memory stays bounded.
    """

    def __init__(self, first: int = 0, stop: int = 0) -> None:
        self.first = first
        self.shift = 0
        self.num_bins = 0
        self.counts: Array = np.zeros(_MAX_BINS, dtype=np.int64)
        self.cover(stop - 1)

    def cover(self, largest: int) -> None:
        """Extend the bins, and widen them where necessary, so that id ``largest`` has a bin."""
        while (largest - self.first) >> self.shift >= _MAX_BINS:
            half = _MAX_BINS // 2
            self.counts[:half] = self.counts[0::2] + self.counts[1::2]
            self.counts[half:] = 0
            self.shift += 1
            self.num_bins = (self.num_bins + 1) // 2
        self.num_bins = max(self.num_bins, ((largest - self.first) >> self.shift) + 1)

    def add(self, ids: Array) -> None:
        """Count ids; every id must have a bin."""
        _count_bins(ids, self.first, self.shift, self.counts)


class EdgeSpool:
    """Write chunks of edges to the spool, in blocks of about ``block_edges`` edges.

    With ``mirrors`` the sort will add the mirror image of each edge (its ends exchanged), so the histogram counts mirror images too.
    """

    def __init__(
        self,
        folder: Path,
        *,
        columns: Mapping[str, Dtype],
        drop_self_loops: bool,
        mirrors: bool,
        block_edges: int,
    ) -> None:
        self.columns = dict(columns)
        self.mirrors = mirrors
        self.histogram = Histogram()
        self._largest_id = -1
        self._drop_self_loops = drop_self_loops
        self._block_edges = block_edges
        self._waiting: list[list[Array]] = []
        self._num_waiting = 0
        self.run = EdgeRun(folder)

    def add(self, chunk: EdgeChunk) -> None:
        """Add a chunk."""
        columns = [chunk.src, chunk.dst, *(chunk.data[name] for name in self.columns)]
        if self._drop_self_loops:
            keep = chunk.src != chunk.dst
            columns = [column[keep] for column in columns]
        if len(columns[0]) == 0:
            return
        self._largest_id = max(self._largest_id, int(columns[0].max()), int(columns[1].max()))
        self.histogram.cover(self._largest_id)
        for ids in (columns[1], columns[0])[: 1 + self.mirrors]:
            self.histogram.add(ids)
        for begin in range(0, len(columns[0]), self._block_edges):
            self._waiting.append([column[begin : begin + self._block_edges] for column in columns])
            self._num_waiting += len(self._waiting[-1][0])
            if self._num_waiting >= self._block_edges:
                self._flush()

    def finish(self, num_vertices: int) -> None:
        """Write the last block, and extend the histogram to all vertices."""
        self._flush()
        self.histogram.cover(num_vertices - 1)

    def _flush(self) -> None:
        if self._waiting:
            src, dst, *data = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
            self._waiting.clear()
            self._num_waiting = 0
            # Ids that need 64 bits are rare.
            ids = np.int32 if self._largest_id <= 2**31 - 1 else np.int64
            self.run.append([src.astype(ids, copy=False), dst.astype(ids, copy=False), *data])


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
            blocks = (marked for block in self._spool.run.blocks() for marked in self._with_mirrors(block))
            self._sort(self._spool.run, blocks, self._num_edges, 0, self._num_vertices, self._spool.histogram)
            writers = {"indptr": self._indptr, "indices": self._indices, **self._data}
            return {name: writer.finish() for name, writer in writers.items()}

    def _with_mirrors(self, block: list[Array]) -> Iterator[list[Array]]:
        yield self._marked(block, 0)
        if self._spool.mirrors:
            yield self._marked([block[1], block[0], *block[2:]], 1)

    def _marked(self, block: list[Array], mark: int) -> list[Array]:
        ids = self._columns[0]
        marks = [np.full(len(block[0]), mark, dtype=np.uint8)] if self._mark_mirrors else []
        return [block[0].astype(ids, copy=False), block[1].astype(ids, copy=False), *block[2:], *marks]

    def _sort(
        self,
        run: EdgeRun,
        blocks: Iterator[list[Array]],
        num_edges: int,
        first: int,
        stop: int,
        histogram: Histogram | None = None,
    ) -> None:
        """Sort and append the part of destinations ``first`` to ``stop - 1``, whose edges are ``blocks`` of a run; remove its file."""
        num_bytes = num_edges * self._bytes_per_edge + (stop - first) * _BYTES_PER_DST
        if num_bytes <= self._memory_bytes or stop - first <= 1:
            columns = self._load(blocks, num_edges)
            run.close()
            self._sort_in_memory(columns, first, stop)
            return
        if histogram is None:
            histogram = Histogram(first, stop)
            for block in run.blocks():
                histogram.add(block[1])
        parts = self._split(blocks, histogram, stop)
        run.close()
        for each, low, end in parts:
            self._sort(each, each.blocks(), each.num_edges, low, end)

    def _load(self, blocks: Iterator[list[Array]], num_edges: int) -> list[Array]:
        columns, begin = [np.empty(num_edges, dtype=form) for form in self._columns], 0
        for block in blocks:
            for column, part in zip(columns, block, strict=True):
                column[begin : begin + len(part)] = part
            begin += len(block[0])
        return columns

    def _sort_in_memory(self, columns: list[Array], first: int, stop: int) -> None:
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
        self._indices.append(src)
        for writer, column in zip(self._data.values(), data, strict=True):
            writer.append(column)
        self._indptr.append(offsets[1:] + self._num_written)
        self._num_written += len(src)
        self._num_sorted += num_in
        self._progress(self._num_sorted, self._num_edges, "edges", "sorting")

    def _split(
        self, blocks: Iterator[list[Array]], histogram: Histogram, stop: int
    ) -> list[tuple[EdgeRun, int, int]]:
        """Split edges into one run for each range of destinations; return the runs with their ranges.

        Most runs fit memory; the caller splits a larger run again.
        """
        bounds = self._choose_bounds(histogram)
        part_of_bin = np.repeat(np.arange(len(bounds) - 1, dtype=np.uint8), np.diff(bounds))
        runs = [EdgeRun(self._spool.run.folder) for _ in range(len(bounds) - 1)]
        ends = np.empty(len(runs), dtype=np.int64)
        done = 0
        for src, dst, *data in blocks:
            out_src, out_dst = np.empty_like(src), np.empty_like(dst)
            positions = np.empty(len(dst) if data else 0, dtype=np.int32)
            _split_by_part(
                dst, src, histogram.first, histogram.shift, part_of_bin, ends, out_dst, out_src, positions
            )
            grouped = [out_src, out_dst, *(column[positions] for column in data)]
            begin = 0
            for run, end in zip(runs, ends.tolist(), strict=True):
                run.append([column[begin:end] for column in grouped])
                begin = end
            done += len(dst)
            self._progress(done, self._num_edges, "edges", "partitioning")
        limits = [min(stop, histogram.first + (int(bound) << histogram.shift)) for bound in bounds]
        return list(zip(runs, limits[:-1], limits[1:], strict=True))

    def _choose_bounds(self, histogram: Histogram) -> list[int]:
        """Cut the bins into at most _MAX_PARTS parts that fit memory, if possible; return the bounds of the parts."""
        counts = histogram.counts[: histogram.num_bins]
        costs = np.cumsum(counts * self._bytes_per_edge + (_BYTES_PER_DST << histogram.shift))
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
    merged = {name: column[kept] for name, column in data.items() if name != _MIRROR}
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


@compiled()
def _count_bins(ids: Array, first: int, shift: int, counts: Array) -> None:
    """Add 1 to the bin's count, int64 [bins], for each of the ids [n]; bin 0 begins at id ``first``."""
    for e in range(len(ids)):
        counts[(np.int64(ids[e]) - first) >> shift] += 1


@compiled()
def _split_by_part(
    keys: Array,
    others: Array,
    first: int,
    shift: int,
    part_of_bin: Array,
    ends: Array,
    out_keys: Array,
    out_others: Array,
    positions: Array,
) -> None:
    """Group edges by the part of their key, stably; ``ends`` gets the end of each part in the output.

    The bins begin at id ``first`` and have 2^shift ids each. ``positions`` gets the former place of each edge; its
    length is 0 if no positions are needed.
    """
    ends[:] = 0
    for e in range(len(keys)):
        ends[part_of_bin[(np.int64(keys[e]) - first) >> shift]] += 1
    total = 0
    for p in range(len(ends)):
        count = ends[p]
        ends[p] = total
        total += count
    for e in range(len(keys)):
        part = part_of_bin[(np.int64(keys[e]) - first) >> shift]
        at = ends[part]
        ends[part] = at + 1
        out_keys[at] = keys[e]
        out_others[at] = others[e]
        if len(positions):
            positions[at] = e

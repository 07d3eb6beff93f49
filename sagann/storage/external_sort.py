"""Edges sorted by destination in bounded memory: any number of edges become CSC on disk.

The edges are in a spool file, with a coarse histogram of their destinations. The destinations are cut into parts of
consecutive ids, each of which fits memory. The spool is split into one file for each part, and the parts are sorted and
appended one after the other. A part that is too large is split again by a histogram of its own; a single destination that
is too large is split by its sources. The result equals a stable sort of all edges by destination, then by source.

Working memory is ``memory_bytes``. Temporary files take up to twice the size of the spool, with
mirror images three times.

References:
    The distribution sort of Vitter, External Memory Algorithms and Data Structures, ACM Computing Surveys
    33(2), 2001, Sec. 5.1, with buckets chosen by counting instead of sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import torch

from sagann.graph.counting_sort import group_by_key
from sagann.graph.row_sort import sort_rows
from sagann.graph.widths import id_dtype
from sagann.import_config import Progress
from sagann.jit import compiled
from sagann.storage.edge_source import Dtype
from sagann.storage.edge_spool import EdgeRun, EdgeSpool, Histogram, empty_edges
from sagann.storage.merge import MIRROR, drop_mirrored, merge_pairs, merge_with_data
from sagann.storage.npy import ArraySpec, NpyWriter, dtype_name
from sagann.storage.rows import Array

# Largest number of parts in one split. More parts would need more open files and smaller writes.
_MAX_PARTS = 128
# Working memory in bytes for each destination of a part: its offset, its counter in the sort, and the offset to write.
_BYTES_PER_DST = 24


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
        self._folder = spool.run.folder
        self._open = open_array
        self._progress = progress
        self._num_written = 0
        self._num_sorted = 0
        self._num_edges = spool.num_edges * (2 if spool.mirrors else 1)
        # Mirror images are marked only if there is edge data: without edge data, an edge and a mirror image are equal.
        self._mark_mirrors = spool.mirrors and bool(spool.columns)
        data = {**spool.columns, **({MIRROR: np.dtype("uint8")} if self._mark_mirrors else {})}
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
            self._sort_all()
            writers = {"indptr": self._indptr, "indices": self._indices, **self._data}
            return {name: writer.finish() for name, writer in writers.items()}

    def _sort_all(self) -> None:
        self._indptr.append(np.zeros(1, dtype=np.int64))
        blocks = (marked for block in self._spool.run.blocks() for marked in self._with_mirrors(block))
        if self._fits(self._num_edges, self._num_vertices):
            columns = [np.concatenate(parts) for parts in zip(empty_edges(self._columns, 0), *blocks, strict=True)]
            self._spool.run.close()
            self._sort_in_memory(columns, 0, self._num_vertices)
        else:
            parts = self._split(blocks, self._spool.histogram, self._num_vertices, by_src=False)
            self._spool.run.close()
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

    def _sort(self, run: EdgeRun, first: int, stop: int) -> None:
        """Sort and append the part of destinations ``first`` to ``stop - 1``; remove its file."""
        if self._fits(run.num_edges, stop - first):
            columns = run.load(self._columns)
            run.close()
            self._sort_in_memory(columns, first, stop)
        elif stop - first == 1:
            num_edges = self._sort_one_destination(run, 0, self._num_vertices)
            self._append_offsets(np.array([num_edges], dtype=np.int64))
        else:
            for part in self._split_again(run, first, stop, by_src=False):
                self._sort(*part)

    def _sort_in_memory(self, columns: list[Array], first: int, stop: int) -> None:
        num_in = len(columns[0])
        if self._merge and len(columns) == 2:
            src, dst = columns
            columns.clear()
            offsets, src = merge_pairs(src, dst, first, stop - first, self._num_vertices)
            data: list[Array] = []
        elif self._merge:
            src, dst, merged = merge_with_data(columns[0], columns[1], self._named(columns))
            columns.clear()
            src, dst, data = drop_mirrored(src, dst, merged)
            offsets = np.searchsorted(dst, np.arange(first, stop + 1))
        else:
            columns[1] -= columns[1].dtype.type(first)
            grouped = group_by_key(
                torch.from_numpy(columns[1]),
                stop - first,
                values=torch.from_numpy(columns[0]),
                positions=len(columns) > 2,
            )
            sort_rows(grouped.indptr, grouped.values, grouped.positions)
            src, offsets = grouped.values.numpy(), grouped.indptr.numpy()
            data = [column[grouped.positions.numpy()] for column in columns[2:]]
        self._append_edges(src, data)
        self._append_offsets(offsets[1:])
        self._tell_sorted(num_in)

    def _sort_one_destination(self, run: EdgeRun, first: int, stop: int) -> int:
        """Append the in-edges of one destination from sources ``first`` to ``stop - 1``; return their number."""
        fits = self._fits(run.num_edges, 0)
        if fits or stop - first == 1:
            # Edges with the same ends need no sort, and a merge leaves few of them. So a run of them may exceed memory:
            # its blocks are read one by one.
            blocks = iter([run.load(self._columns)]) if fits else run.blocks()
            num_edges = self._merge_in_edges(blocks) if self._merge else self._sort_in_edges(blocks)
            run.close()
            return num_edges
        return sum(self._sort_one_destination(*part) for part in self._split_again(run, first, stop, by_src=True))

    def _merge_in_edges(self, blocks: Iterator[list[Array]]) -> int:
        """Merge the edges of one destination, append the result, and return its number of edges."""
        merged = empty_edges(self._columns, 0)
        for block in blocks:
            joined = [np.concatenate(pair) for pair in zip(merged, block, strict=True)]
            src, dst, data = merge_with_data(joined[0], joined[1], self._named(joined))
            merged = [src, dst, *data.values()]
            self._tell_sorted(len(block[0]))
        src, _, kept = drop_mirrored(merged[0], merged[1], self._named(merged))
        self._append_edges(src, kept)
        return len(src)

    def _named(self, columns: Sequence[Array]) -> dict[str, Array]:
        """The edge data of columns, by name."""
        return dict(zip(self._names, columns[2:], strict=True))

    def _sort_in_edges(self, blocks: Iterator[list[Array]]) -> int:
        """Sort each block of one destination's edges by source, append the edges, and return their number."""
        num_edges = 0
        for src, _, *data in blocks:
            order = np.argsort(src, kind="stable")
            self._append_edges(src[order], [column[order] for column in data])
            self._tell_sorted(len(src))
            num_edges += len(src)
        return num_edges

    def _split_again(self, run: EdgeRun, first: int, stop: int, *, by_src: bool) -> list[tuple[EdgeRun, int, int]]:
        """Split a run by a histogram of its own, and remove its file."""
        histogram = Histogram(first, stop)
        for block in run.blocks():
            histogram.add(block[0 if by_src else 1])
        parts = self._split(run.blocks(), histogram, stop, by_src=by_src)
        run.close()
        return parts

    def _split(
        self, blocks: Iterator[list[Array]], histogram: Histogram, stop: int, *, by_src: bool
    ) -> list[tuple[EdgeRun, int, int]]:
        """Split edges into one run for each range of ids; return the runs with their ranges.

        Most runs fit memory; the caller splits a larger run again.
        """
        bounds = self._choose_bounds(histogram, count_ids=not by_src)
        part_of_bin = np.repeat(np.arange(len(bounds) - 1, dtype=np.uint8), np.diff(bounds))
        runs = [EdgeRun(self._folder) for _ in range(len(bounds) - 1)]
        ends = np.empty(len(runs), dtype=np.int64)
        done = 0
        for block in blocks:
            keys, others = (block[0], block[1]) if by_src else (block[1], block[0])
            out_keys, out_others = np.empty_like(keys), np.empty_like(others)
            positions = np.empty(len(keys) if len(block) > 2 else 0, dtype=np.int32)
            _split_by_part(
                keys, others, histogram.first, histogram.shift, part_of_bin, ends, out_keys, out_others, positions
            )
            src, dst = (out_keys, out_others) if by_src else (out_others, out_keys)
            grouped = [src, dst, *(column[positions] for column in block[2:])]
            begin = 0
            for run, end in zip(runs, ends.tolist(), strict=True):
                run.append([column[begin:end] for column in grouped])
                begin = end
            done += len(keys)
            self._progress(done, None if by_src else self._num_edges, "edges", "partitioning")
        limits = [min(stop, histogram.first + (int(bound) << histogram.shift)) for bound in bounds]
        return list(zip(runs, limits[:-1], limits[1:], strict=True))

    def _choose_bounds(self, histogram: Histogram, *, count_ids: bool) -> list[int]:
        """Cut the bins into at most _MAX_PARTS parts that fit memory, if possible; return the bounds of the parts."""
        counts = histogram.counts[: histogram.num_bins]
        costs = np.cumsum(counts * self._bytes_per_edge + (_BYTES_PER_DST << histogram.shift if count_ids else 0))
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

    def _append_edges(self, src: Array, data: Sequence[Array]) -> None:
        self._indices.append(src)
        for writer, column in zip(self._data.values(), data, strict=False):
            writer.append(column)

    def _append_offsets(self, ends: Array) -> None:
        """Append the offsets of a part; ``ends`` are relative to the part's first edge."""
        self._indptr.append(ends + self._num_written)
        self._num_written += int(ends[-1]) if len(ends) else 0

    def _tell_sorted(self, num_edges: int) -> None:
        self._num_sorted += num_edges
        self._progress(self._num_sorted, self._num_edges, "edges", "sorting")


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

"""Temporary files of edges for the external sort, and the histogram of ids by which the sort chooses its parts.

The spool is the file of all edges, in the order in which the import reads them; each part of the sort has a file too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from weakref import finalize

import numpy as np

from sagann.storage.import_source import Dtype, EdgeChunk
from sagann.storage.rows import Array

_MAX_BINS = 2**20


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
        counts = np.bincount(self.bins_of(ids))
        self.counts[: len(counts)] += counts

    def bins_of(self, ids: Array) -> Array:
        """The number of each id's bin."""
        return (ids - self.first) >> self.shift


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

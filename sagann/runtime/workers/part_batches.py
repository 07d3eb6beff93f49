"""Mini-batches of workers' parts: the in-edges of vertices, and their rows of features, come from the workers that own them.

Every worker samples its share of each batch. It asks the owners of a hop's vertices for their in-edges, which each of them picks as one
process would: what is picked depends on the hop and the vertex alone. So the workers draw the batches that one process draws of the whole graph.
All workers ask at the same time, for the same hop of the same batch, also those that need nothing; each answers the others.

References:
    Jia et al., ROC, MLSys 2020, Sec. 3 (graph and features are partitioned over machines). We differ in that mini-batches are sampled from
    the parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sagann.graph.feature_store import feature_store, read_rows
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import csr_tensor, gather_ranges, id_dtype, is_sparse, mapped_rows, offsets_of, take_rows
from sagann.runtime.tiered.counters import TierCounts, Traffic
from sagann.runtime.workers.group import Workers
from sagann.runtime.workers.worker_part import WorkerPart
from sagann.sampling.neighbor_sampler import Array, InEdges, Picked

_PRELOAD_BYTES = 64 << 20
"Largest number of bytes of hot rows that travel at a time."


class _Asked:
    """Vertices by owner, and those that the others ask this worker for. All workers make theirs at the same time."""

    def __init__(self, ids: Tensor, bounds: Sequence[int], workers: Workers, doing: str) -> None:
        self._workers, self._doing = workers, doing
        owner = torch.searchsorted(torch.tensor(bounds), ids, right=True) - 1
        places = [(owner == rank).nonzero().squeeze(1) for rank in range(workers.size)]
        order = torch.cat(places)
        self.back = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
        "Where each vertex stands in the order of the owners."
        asked = {rank: ids[place] for rank, place in enumerate(places)}
        self.own = asked.pop(workers.rank)
        "The vertices that this worker owns."
        self.counts = {rank: len(found) for rank, found in asked.items()}
        "Number of vertices that each other worker is asked for."
        self.wanted = workers.exchange(asked, doing)
        "The own vertices that each other worker asks for."

    def swap(
        self, own: Sequence[Tensor], answers: Mapping[int, Sequence[Tensor]], counts: Mapping[int, int]
    ) -> list[Tensor]:
        """Send each other worker some arrays; the own rows of each array and so many of each of the others, joined in the order of the ranks."""
        workers, joined, finishes = self._workers, [], []
        for at, mine in enumerate(own):
            received = {rank: mine.new_empty(count, *mine.shape[1:]) for rank, count in counts.items()}
            sends = {rank: each[at].contiguous() for rank, each in answers.items()}
            finishes.append(workers.begin(sends, received, self._doing, tag=at))
            joined.append([mine if rank == workers.rank else received[rank] for rank in range(workers.size)])
        for finish in finishes:
            finish()
        return [torch.cat(parts) for parts in joined]

    def swap_ranges(
        self, own: tuple[Tensor, ...], answers: Mapping[int, tuple[Tensor, ...]]
    ) -> tuple[Tensor, list[Tensor]]:
        """As :meth:`swap`, for arrays with a range of rows for each vertex, whose offsets are the first array; all arrays are joined."""
        mine, sent = own[0].diff(), {rank: [each[0].diff()] for rank, each in answers.items()}
        (counts,) = self.swap([mine], sent, self.counts)
        num_of_each = [self.counts.get(rank, len(mine)) for rank in range(self._workers.size)]
        sums = {rank: int(part.sum()) for rank, part in enumerate(counts.split(num_of_each)) if rank in self.counts}
        return offsets_of(counts), self.swap(own[1:], {rank: each[1:] for rank, each in answers.items()}, sums)


class PartEdges:
    """The in-edges of all vertices, those of the others from the workers that own them; see :class:`sagann.sampling.neighbor_sampler.Edges`."""

    def __init__(self, part: WorkerPart, workers: Workers) -> None:
        self._bounds, self._workers, self._id_type = part.bounds, workers, id_dtype(part.num_edges)
        self._topology, own = part.topology.to("cpu"), torch.arange(part.vertices.start, part.vertices.stop)
        ids = torch.cat([own, part.halo.part.halo.cpu()]).to(id_dtype(part.bounds[-1]))
        first_vertex, first_edge = part.vertices.start, part.halo.first_edge
        self._own = InEdges(self._topology, first_vertex=first_vertex, first_edge=first_edge, ids=ids)

    def pick(self, vertices: Array, fanout: int, key: np.uint64, *, replace: bool, hop: int) -> Picked:
        """Pick in-edges of some vertices. All workers call this at the same time."""
        asked = _Asked(torch.from_numpy(vertices), self._bounds, self._workers, "sampling neighbours")

        def picked(ids: Tensor) -> tuple[Tensor, ...]:
            found = self._own.pick(ids.numpy(), fanout, key, replace=replace, hop=hop)
            sources = torch.from_numpy(found.indices[found.positions])
            data = (found.edge_data[name] for name in self._topology.edge_data)
            return (
                torch.from_numpy(found.indptr),
                sources,
                torch.from_numpy(found.edge_ids).to(self._id_type),
                *data,
            )

        answers = {rank: picked(ids) for rank, ids in asked.wanted.items()}
        offsets, (sources, edge_ids, *data) = asked.swap_ranges(picked(asked.own), answers)
        indptr, places = gather_ranges(offsets, asked.back)
        return Picked(
            indptr=indptr.numpy(),
            indices=sources.numpy(),
            positions=places.numpy(),
            edge_ids=edge_ids[places].numpy(),
            edge_data={name: rows[places] for name, rows in zip(self._topology.edge_data, data, strict=True)},
        )


class PartRows:
    """The features of all vertices, those of the others from the workers that own them: a feature store, which all workers ask at the same time.

    With a hot tier (:meth:`keep`) rows of others lie in memory, and do not travel.
    """

    def __init__(self, part: WorkerPart, workers: Workers) -> None:
        self._bounds, self._workers, self._vertices = part.bounds, workers, part.vertices
        own = mapped_rows(part.features, lambda array: array.to("cpu"))
        assert own is not None
        self._own, self.is_sparse = feature_store(own), is_sparse(own)
        self.num_rows, self.row_shape, self.dtype = part.bounds[-1], tuple(own.shape[1:]), own.dtype
        self._hot_ids = torch.empty(0, dtype=torch.int64)
        self._hot = torch.empty(0, *self.row_shape, dtype=own.dtype)
        self._traffic = Traffic()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def id_bytes(self) -> int:
        """Bytes of the id of a row in the hot tier."""
        return self._hot_ids.itemsize

    @property
    def num_hot_rows(self) -> int:
        """Number of rows of others that lie in memory."""
        return len(self._hot_ids)

    @property
    def hot_bytes(self) -> int:
        """Bytes of the hot tier: of the rows, and of their ids."""
        return self._hot.nbytes + self._hot_ids.nbytes

    def keep(self, count: int, hottest: Tensor) -> None:
        """Keep the rows of the first ``count`` vertices of ``hottest`` that others own. All workers call this at the same time.

        References:
            Min et al., Graph Neural Network Training with Data Tiering, 2021, Sec. 4. We differ in that the cold tier is another worker.
        """
        is_own = (hottest >= self._vertices.start) & (hottest < self._vertices.stop)
        ids = hottest[~is_own][:count].sort().values
        hot = empty_array((len(ids), *self.row_shape), self.dtype, torch.device("cpu"))
        step = max(1, _PRELOAD_BYTES // max(1, self.row_bytes))
        # As many exchanges at every worker.
        for first in range(0, count, step):
            hot[first : first + step] = self.rows(ids[first : first + step])
        self._hot_ids, self._hot, self._traffic = ids, hot, Traffic()

    def traffic(self) -> Traffic:
        """Rows and bytes of others that each tier has given so far."""
        return self._traffic

    def rows(self, ids: Tensor) -> Tensor:
        """Copy the rows of some vertices, dense or ``torch.sparse_csr``; see :class:`sagann.graph.feature_store.FeatureStore`."""
        if not self.num_hot_rows:
            return self._exchanged(ids)
        found = torch.searchsorted(self._hot_ids, ids).clamp_(max=self.num_hot_rows - 1)
        is_hot = self._hot_ids[found] == ids
        places, others = is_hot.nonzero().squeeze(1), (~is_hot).nonzero().squeeze(1)
        rows = empty_array((len(ids), *self.row_shape), self.dtype, torch.device("cpu"))
        self._traffic += Traffic(hot=TierCounts.of(len(places), self.row_bytes))
        rows.index_copy_(0, others, self._exchanged(ids[others]))
        return rows.index_copy_(0, places, self._hot[found[places]])

    def _exchanged(self, ids: Tensor) -> Tensor:
        asked = _Asked(ids, self._bounds, self._workers, "exchanging rows of features")
        num_others = sum(asked.counts.values())
        self._traffic += Traffic(cold=TierCounts.of(num_others, self.row_bytes))
        own, *others = (
            read_rows(self._own, each - self._vertices.start) for each in (asked.own, *asked.wanted.values())
        )
        answers = dict(zip(asked.wanted, others, strict=True))
        if not is_sparse(own):
            (rows,) = asked.swap([own], {rank: [each] for rank, each in answers.items()}, asked.counts)
            return rows.index_select(0, asked.back)
        arrays = {rank: (rows.crow_indices(), rows.col_indices(), rows.values()) for rank, rows in answers.items()}
        offsets, (columns, values) = asked.swap_ranges(
            (own.crow_indices(), own.col_indices(), own.values()), arrays
        )
        joined = csr_tensor(offsets.to(columns.dtype), columns, values, num_columns=own.shape[1])
        return take_rows(joined, asked.back)

    def slice(self, start: int, stop: int) -> Tensor:
        """The rows of vertices ``start`` to ``stop - 1``."""
        return self.rows(torch.arange(start, stop))

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
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sagann.graph.feature_store import feature_store, read_rows
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import (
    as_bytes,
    csr_tensor,
    id_dtype,
    is_sparse,
    mapped_rows,
    offsets_of,
    take_rows,
)
from sagann.jit import Array, compiled
from sagann.kernels.memory import POOL
from sagann.runtime.tiered.counters import TierCounts, Traffic
from sagann.runtime.workers.side_channel import SideChannel
from sagann.runtime.workers.worker_part import WorkerPart
from sagann.sampling.neighbor_sampler import InEdges, Picked
from sagann.storage.scattered import copy_row

_PRELOAD_BYTES = 64 << 20
"Largest number of bytes of hot rows that travel at a time."


class _Asked:
    """Vertices by owner, and those that the others ask this worker for. All workers make theirs at the same time."""

    def __init__(self, ids: Tensor, bounds: Array, channel: SideChannel, doing: str) -> None:
        self._channel, self._doing = channel, doing
        places, back, by_owner = (np.empty(len(ids), dtype=np.int64) for _ in range(3))
        ends = np.zeros(channel.size + 1, dtype=np.int64)
        _divide(ids.numpy(), bounds, places, back, by_owner, ends)
        sizes = np.diff(ends).tolist()
        self.places = torch.from_numpy(places).split(sizes)
        "Where the vertices of each owner stand."
        self.back = torch.from_numpy(back)
        "Where each vertex stands in the order of the owners."
        asked = dict(enumerate(torch.from_numpy(by_owner).split(sizes)))
        self.own = asked.pop(channel.rank)
        self.num_others = len(ids) - len(self.own)
        found = channel.exchange({rank: [each] for rank, each in asked.items()}, doing)
        self.wanted = {rank: each for rank, (each,) in found.items()}
        "The own vertices that each other worker asks for."

    def answered(self, answers: Mapping[int, Sequence[Tensor]]) -> dict[int, list[Tensor]]:
        """Give each other worker some arrays; those that each of them gives."""
        return self._channel.exchange(answers, self._doing)

    def joined(self, arrays_of: Callable[[Tensor], Sequence[Tensor]]) -> list[Tensor]:
        """What the owners give, joined in the order of the ranks: ``arrays_of`` vertices an array of their numbers of entries, and arrays of entries."""
        # What all ask for is made at once: what lies together in memory is read together.
        ranks = sorted({**self.wanted, self._channel.rank: self.own})
        asked = [self.wanted.get(rank, self.own) for rank in ranks]
        counts, *entries = arrays_of(torch.cat(asked))
        of_vertices = counts.split(list(map(len, asked)))
        sizes = [int(each.sum()) for each in of_vertices]
        pieces = zip(of_vertices, *(each.split(sizes) for each in entries), strict=True)
        answers = dict(zip(ranks, map(list, pieces), strict=True))
        own = answers.pop(self._channel.rank)
        found = self.answered(answers) | {self._channel.rank: own}
        return [torch.cat([found[rank][at] for rank in ranks]) for at in range(len(own))]


@compiled()
def _divide(ids: Array, bounds: Array, places: Array, back: Array, by_owner: Array, ends: Array) -> None:
    """Divide vertices by owner, each owner's in their order: write their places, and the place of each in that order; ``ends`` begins with zeros."""
    for vertex in ids:
        ends[np.searchsorted(bounds, vertex, side="right")] += 1
    nexts = np.cumsum(ends)
    ends[:] = nexts
    for at in range(len(ids)):
        owner = np.searchsorted(bounds, ids[at], side="right") - 1
        here = nexts[owner]
        nexts[owner] += 1
        places[here], by_owner[here], back[at] = at, ids[at], here


class PartEdges:
    """The in-edges of all vertices, those of the others from the workers that own them; see :class:`sagann.sampling.neighbor_sampler.Edges`."""

    def __init__(self, part: WorkerPart, channel: SideChannel) -> None:
        self._bounds, self._channel, self._id_type = np.array(part.bounds), channel, id_dtype(part.num_edges)
        self._topology, own = part.topology.to("cpu"), torch.arange(part.vertices.start, part.vertices.stop)
        self._ids = torch.cat([own, part.halo.part.halo.cpu()]).to(id_dtype(part.bounds[-1]))
        "Ids in the graph of the part's sources."
        self._first_edge = part.halo.first_edge
        self._own = InEdges(self._topology, first_vertex=part.vertices.start)

    def pick(self, vertices: Array, fanout: int, key: np.uint64, *, replace: bool, hop: int) -> Picked:
        asked = _Asked(torch.from_numpy(vertices), self._bounds, self._channel, "sampling neighbours")

        def picked(ids: Tensor) -> list[Tensor]:
            found = self._own.pick(ids.numpy(), fanout, key, replace=replace, hop=hop)
            data = (found.edge_data[name] for name in self._topology.edge_data)
            count = len(found.positions)
            sources, edge_ids = self._ids.new_empty(count), torch.empty(count, dtype=self._id_type)
            given = found.indices, found.positions, self._ids.numpy(), self._first_edge
            _write_ids(*given, sources.numpy(), edge_ids.numpy())
            return [torch.from_numpy(found.indptr).diff(), sources, edge_ids, *data]

        counts, sources, edge_ids, *data = asked.joined(picked)
        indptr, places = np.empty(len(counts) + 1, dtype=np.int64), np.empty(len(sources), dtype=np.int64)
        _arrange(offsets_of(counts).numpy(), asked.back.numpy(), indptr, places)
        return Picked(
            indptr=indptr,
            indices=sources.numpy(),
            positions=places,
            edge_ids=edge_ids.numpy()[places],
            edge_data={name: rows[places] for name, rows in zip(self._topology.edge_data, data, strict=True)},
        )


@compiled()
def _write_ids(
    indices: Array, positions: Array, ids: Array, first_edge: int, sources: Array, edge_ids: Array
) -> None:
    """Write the ids in the graph of picked edges and of their sources. Sources are far apart in memory: no other pass waits for them."""
    for number, position in enumerate(positions):
        sources[number] = ids[indices[position]]
        edge_ids[number] = first_edge + position


@compiled()
def _arrange(offsets: Array, order: Array, indptr: Array, places: Array) -> None:
    """Write the offsets of ranges in an order, and where their entries stand."""
    at = 0
    for number, which in enumerate(order):
        indptr[number] = at
        for place in range(offsets[which], offsets[which + 1]):
            places[at] = place
            at += 1
    indptr[len(order)] = at


class PartRows:
    """The features of all vertices, those of the others from the workers that own them: a feature store, which all workers ask at the same time.

    With a hot tier (:meth:`keep`) rows of others lie in memory, and do not travel.
    """

    def __init__(self, part: WorkerPart, channel: SideChannel) -> None:
        self._bounds, self._channel, self._vertices = np.array(part.bounds), channel, part.vertices
        own = mapped_rows(part.features, lambda array: array.to("cpu"))
        assert own is not None
        self._own, self.is_sparse = own if is_sparse(own) else own.contiguous(), is_sparse(own)
        self.num_rows, self.row_shape, self.dtype = part.bounds[-1], tuple(own.shape[1:]), own.dtype
        self._hot_ids = torch.empty(0, dtype=torch.int64)
        self._hot = torch.empty(0, *self.row_shape, dtype=own.dtype)
        self._traffic = Traffic()

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def id_bytes(self) -> int:
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
        if self.is_sparse:
            return self._sparse_rows(ids)
        # Threads of a pipeline allocate: what they free the C library would return to the system.
        rows = POOL.empty((len(ids), *self.row_shape), self.dtype)
        others: Tensor | None = None
        if self.num_hot_rows:
            found = torch.searchsorted(self._hot_ids, ids).clamp_(max=self.num_hot_rows - 1)
            is_hot = self._hot_ids[found] == ids
            hot, others = is_hot.nonzero().squeeze(1), (~is_hot).nonzero().squeeze(1)
            _copy(self._hot, found[hot], rows, hot)
            self._traffic += Traffic(hot=TierCounts.of(len(hot), self.row_bytes))
        asked = self._asked(ids if others is None else ids[others])
        first, own = self._vertices.start, feature_store(self._own)
        answers = {rank: [read_rows(own, wanted - first)] for rank, wanted in asked.wanted.items()}
        places = asked.places if others is None else [others[each] for each in asked.places]
        for rank, (found,) in asked.answered(answers).items():
            _copy(found, torch.arange(len(found)), rows, places[rank])
        _copy(self._own, asked.own - first, rows, places[self._channel.rank])
        return rows

    def _sparse_rows(self, ids: Tensor) -> Tensor:
        asked = self._asked(ids)

        def arrays(wanted: Tensor) -> list[Tensor]:
            rows = take_rows(self._own, wanted - self._vertices.start)
            return [rows.crow_indices().diff(), rows.col_indices(), rows.values()]

        counts, columns, values = asked.joined(arrays)
        offsets = offsets_of(counts).to(columns.dtype)
        return take_rows(csr_tensor(offsets, columns, values, num_columns=self.row_shape[0]), asked.back)

    def _asked(self, ids: Tensor) -> _Asked:
        asked = _Asked(ids, self._bounds, self._channel, "exchanging rows of features")
        self._traffic += Traffic(cold=TierCounts.of(asked.num_others, self.row_bytes))
        return asked

    def slice(self, start: int, stop: int) -> Tensor:
        return self.rows(torch.arange(start, stop))


def _copy(source: Tensor, rows: Tensor, target: Tensor, places: Tensor) -> None:
    """Copy some rows of a contiguous tensor to places of another one."""
    if len(places) and target.numel():
        _copy_rows(as_bytes(source), rows.numpy(), as_bytes(target), places.numpy())


@compiled()
def _copy_rows(source: Array, rows: Array, target: Array, places: Array) -> None:
    for number in range(len(rows)):
        copy_row(source, rows[number], target, places[number])

"""DeviceSampler samples on a CUDA device what NeighborSampler does on the processor, bit by bit.

Random numbers, the order of edges and the numbering of sources are those of the processor. So a run may sample on either, and be resumed on
the other. Picks are kernels (:mod:`sagann.kernels.edge_picks`). All other steps are sorts, sums and selections of PyTorch, which have one
result whatever order the device works in.

How many edges and sources a hop has is known to the device alone. So arrays have *room*: for what earlier batches had, and 2% more. Unused
places hold padding, which has the id -1. A batch is queued without a wait; then the host reads all numbers at once, and cuts the arrays to their
lengths. A batch that finds no room is sampled again, with numbers that are read hop by hop. A padded batch is not cut: the host reads nothing.

Tests run it with simulated devices and in Triton's interpreter.

References:
    Min et al., Graph Neural Network Training with Data Tiering, 2021, Sec. 5.5 (sampling on devices).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from operator import gt
from typing import NamedTuple

import torch
from torch import Tensor

from sagann.errors import InputError, MissingDependencyError
from sagann.graph.checks import require_distinct
from sagann.graph.random_numbers import key_of
from sagann.graph.rows import id_dtype, offsets_of
from sagann.graph.topology import Csr, Topology, for_training_as_well
from sagann.kernels.edge.work import MOST_TERMS
from sagann.kernels.row_gather import PADDING
from sagann.runtime.tiered.device_topology import DeviceTopology
from sagann.sampling import MiniBatch
from sagann.sampling.arguments import NEIGHBOURS, as_ids, require_drawable, require_fanouts, require_some

_SPARE = 64
"Room beyond 2% of it, for small batches."


class Room(NamedTuple):
    """Numbers of sources and edges for which the arrays of a hop have room."""

    num_src: int
    num_edges: int

    @classmethod
    def beyond(cls, num_src: int, num_edges: int) -> Room:
        """Room for a hop, and for 2% more."""
        return cls(num_src + num_src // 50 + _SPARE, num_edges + num_edges // 50 + _SPARE)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Hop:
    """A sampled hop, on the device; arrays end with padding."""

    indptr: Tensor
    "int64 [room of destinations + 1]; padding has no edges."
    indices: Tensor
    "Local ids of the sources [room of edges]; 0 for padding."
    edge_ids: Tensor
    ids: Tensor
    "int64 [room of sources]: ids of the sources in the graph."
    num_src: Tensor

    def out_edges(self) -> Csr:
        """The edges by source, padding last."""
        return _out_edges(self.indptr, torch.where(self.edge_ids >= 0, self.indices, len(self.ids)), len(self.ids))

    def block(
        self, csr: Csr, edge_data: Mapping[str, Tensor], num_src: int, by_dst: Tensor, by_src: Tensor
    ) -> Topology:
        """The hop without padding, with its number of sources, and the offsets of in-edges and of out-edges, on the host."""
        num_edges = int(by_dst[-1])
        block = Topology(
            indptr=self.indptr[: len(by_dst)],
            indices=self.indices[:num_edges],
            num_src=num_src,
            edge_data={name: rows[:num_edges] for name, rows in edge_data.items()},
            edge_ids=self.edge_ids[:num_edges],
            csr=Csr(
                indptr=csr.indptr[: len(by_src)],
                indices=csr.indices[:num_edges],
                edge_ids=csr.edge_ids[:num_edges],
            ),
            validate=False,
        )
        block.derived(("offsets", "dst"), lambda: by_dst)
        block.derived(("offsets", "src"), lambda: by_src)
        return block


class PaddedBatch(NamedTuple):
    """A batch whose shapes do not depend on what was sampled, without features and labels."""

    batch: MiniBatch
    "The batch; rows, ids and edges of the padding come last."
    is_beyond: Tensor
    "bool []: whether a hop found no room; then the batch means nothing."
    num_edges: Tensor
    "int64 []: number of edges that were sampled, of all hops together."


class DeviceSampler:
    """Samples on a device what :class:`sagann.sampling.NeighborSampler` samples on the processor.

    Work is queued on the calling thread's current stream. Several threads may use a sampler at once.

    Args:
        edges: a whole graph's, where the device reads them.
        fanouts: as for ``NeighborSampler``. Without ``replace`` at most 1,024, or -1 for all in-edges.
        replace: as for ``NeighborSampler``.
        seed: seed of the run.
    Raises:
        InputError: an argument has the wrong form, or a fanout is too large for a device.
        MissingDependencyError: Triton is not installed.
    """

    def __init__(
        self, edges: DeviceTopology, fanouts: Sequence[int], *, replace: bool = False, seed: int = 0
    ) -> None:
        if find_spec("triton") is None:
            raise MissingDependencyError("triton", extra="cuda", feature="sampling on a CUDA device")
        # Imported here: it needs Triton.
        self._picks = import_module("sagann.kernels.edge_picks")
        self.edges, self.replace, self.seed = edges, replace, seed
        self.fanouts = require_fanouts(fanouts, replace=replace, where="fanouts")
        most = self._picks.MOST_DIFFERENT
        for hop, fanout in enumerate(self.fanouts):
            if not replace and fanout > most:
                raise InputError(
                    f"fanout is too large for sampling on a device: {fanout}, at most {most} are picked "
                    f"without replacement (in fanouts, hop {hop})",
                    hint="Pass -1 for all edges, lower the fanout, or let the processor sample.",
                )
        self._rooms: tuple[Room, ...] = ()
        "For each hop, room for what the batches so far had; empty before the first one."

    def sample(self, seeds: Tensor | Sequence[int], *, epoch: int = 0, batch: int = 0) -> MiniBatch:
        """Sample the blocks of some seeds: see :meth:`sagann.sampling.NeighborSampler.sample`. All tensors of the result lie on the device.

        The host waits once, for the numbers of edges and sources and for the offsets by which passes are cut into items; and in each hop
        where a batch is larger than those before.
        """
        seeds = as_ids(seeds, where="seeds")
        require_distinct(seeds, self.edges.num_vertices, where="seeds")
        require_some(seeds)
        rooms, hops, blocks = self._rooms, list[Hop](), None
        with for_training_as_well():
            keys = self.keys(epoch, batch)
            if seeds.device.type == "cpu":
                both = self.edges.pool.bring(torch.cat([seeds, keys]))
                seeds, keys = both[: len(seeds)], both[len(seeds) :]
            else:
                keys = self.edges.pool.bring(keys)
            if rooms:
                hops = self.queue(seeds, keys, rooms)
                blocks = self._blocks(hops, len(seeds))
            if blocks is None:
                hops = self.queue(seeds, keys)
                blocks = self._blocks(hops, len(seeds))
                assert blocks is not None
                # A thread that does so at the same time costs no more than a batch that is sampled twice.
                self._rooms = tuple(
                    Room.beyond(*map(max, (block.num_src, block.num_edges), room))
                    for block, room in zip(blocks, rooms or [(0, 0)] * len(blocks), strict=True)
                )
        return MiniBatch(blocks=blocks[::-1], src_ids=hops[-1].ids[: blocks[-1].num_src], seeds=seeds)

    def keys(self, epoch: int, batch: int) -> Tensor:
        """The keys of a batch's draws: int64 [number of hops], on the processor. With its seeds, they decide what is sampled."""
        keys = [int(key_of(self.seed, NEIGHBOURS, epoch, batch, hop)) for hop in range(len(self.fanouts))]
        return torch.tensor([key - (key >> 63 << 64) for key in keys])

    def queue(self, seeds: Tensor, keys: Tensor, rooms: Sequence[Room] = ()) -> list[Hop]:
        """Queue the sampling of some seeds on the device, with room for each hop; without rooms, the host waits for the edges of each hop.

        A hop that finds no room is cut off, and later ones mean nothing. Seeds and :meth:`keys` lie on the device.
        """
        hops, ids = list[Hop](), seeds
        for number, fanout in enumerate(self.fanouts):
            room = rooms[number] if rooms else None
            most_edges = None if room is None else room.num_edges
            indptr, edge_ids = self._picked(ids, fanout, keys[number], number, most_edges)
            most = min(len(ids) + len(edge_ids), self.edges.num_vertices) if room is None else room.num_src
            sources = torch.where(edge_ids >= 0, self.edges.sources(edge_ids).long(), PADDING)
            local_ids, ids, num_src = number_sources(ids, sources, most)
            indices = local_ids.to(id_dtype(len(indptr) + len(edge_ids)))
            hops.append(Hop(indptr=indptr, indices=indices, edge_ids=edge_ids, ids=ids, num_src=num_src))
        return hops

    def padded(self, seeds: Tensor, keys: Tensor, rooms: Sequence[Room]) -> PaddedBatch:
        """Queue a batch whose arrays fill their rooms, so that all batches have the same shapes; the host waits for nothing.

        The last destination and the last source of each block are padding. All edges of the padding begin and end at padding, so no other row
        sees them, and each destination of the padding has one at least: a mean of none may be NaN. The model gives a row more than there are
        seeds, the last one. ``rooms`` have room for the padding of every hop. Seeds and :meth:`keys` lie on the device.
        """
        ids = torch.nn.functional.pad(seeds, (0, 1), value=PADDING)
        num_dst: int | Tensor = len(seeds)
        blocks, src_ids = list[Topology](), ids
        is_beyond = torch.zeros((), dtype=torch.bool, device=ids.device)
        num_edges = torch.zeros((), dtype=torch.int64, device=ids.device)
        with for_training_as_well():
            for hop, room in zip(self.queue(ids, keys, rooms), rooms, strict=True):
                count, most, last_src = hop.indptr[-1], room.num_edges, room.num_src - 1
                # Edges of the padding before each row; those that are left end at the last row.
                before = (torch.arange(len(hop.indptr) - 1, device=ids.device) - num_dst).clamp(min=0)
                is_beyond = is_beyond | (hop.num_src > last_src) | (count + before[-1] >= most)
                num_edges, num_dst, src_ids = num_edges + count, hop.num_src, hop.ids
                # A batch beyond its rooms means nothing, but stays within the arrays.
                indptr = torch.cat([(hop.indptr[:-1] + before).clamp(max=most), hop.indptr.new_full((1,), most)])
                is_padding = torch.arange(most, device=ids.device) >= count
                indices = torch.where(is_padding, last_src, hop.indices).clamp(max=last_src)
                edge_ids = hop.edge_ids.clamp(min=0)
                block = Topology(
                    indptr=indptr,
                    indices=indices.to(hop.indices.dtype),
                    num_src=room.num_src,
                    edge_data=self.edges.edge_data(edge_ids),
                    edge_ids=edge_ids,
                    csr=_out_edges(indptr, indices, room.num_src),
                    validate=False,
                )
                # Whether there are any follows from the room, as the order of sums does.
                for at in ("dst", "src"):
                    block.derived(("has hubs", at), partial(gt, most, 2 * MOST_TERMS))
                blocks.append(block)
        batch = MiniBatch(blocks=tuple(reversed(blocks)), src_ids=src_ids, seeds=ids)
        return PaddedBatch(batch, is_beyond, num_edges)

    def _blocks(self, hops: Sequence[Hop], num_dst: int) -> tuple[Topology, ...] | None:
        """The hops without padding, after the host has waited for their numbers; None if one of them found no room."""
        csrs = [hop.out_edges() for hop in hops]
        parts = [
            part
            for hop, csr in zip(hops, csrs, strict=True)
            for part in (hop.num_src.view(1), hop.indptr, csr.indptr)
        ]
        read = self.edges.pool.read(torch.cat(parts)).split([len(part) for part in parts])
        blocks = []
        for number, hop in enumerate(hops):
            count, by_dst, by_src = read[3 * number : 3 * number + 3]
            num_src = int(count)
            if num_src > len(hop.ids) or by_dst[num_dst] > len(hop.indices):
                return None
            offsets = by_dst[: num_dst + 1], by_src[: num_src + 1]
            blocks.append(hop.block(csrs[number], self.edges.edge_data(hop.edge_ids), num_src, *offsets))
            num_dst = num_src
        return tuple(blocks)

    def _picked(self, ids: Tensor, fanout: int, key: Tensor, hop: int, most: int | None) -> tuple[Tensor, Tensor]:
        """Offsets and ids of the edges that a hop picks of the in-edges of some vertices, with room for ``most`` edges; None for all of them."""
        begins = self.edges.offsets(ids)
        degrees = self.edges.offsets(ids + 1) - begins
        replace = self.replace and fanout != -1
        counts = degrees
        if replace:
            counts = (degrees > 0) * fanout
        elif fanout != -1:
            counts = degrees.clamp(max=fanout)
        indptr = offsets_of(counts)
        if most is None:
            most, num_dst = self.edges.pool.read(torch.stack([indptr[-1], (ids >= 0).sum()])).tolist()
            if replace:
                require_drawable(most, num_dst, fanout, where=f"fanouts, hop {hop}")
        dtype = id_dtype(self.edges.num_edges)
        if fanout == -1:
            return indptr, _in_rows(indptr, begins, most).to(dtype)
        if replace:
            drawn = torch.empty(len(ids) * fanout, dtype=dtype, device=ids.device)
            self._picks.draw(begins, degrees, ids, fanout, key, drawn)
            # A destination's edges are in the order of the graph.
            drawn = drawn.view(-1, fanout).sort(dim=1).values.view(-1)
            at = _in_rows(indptr, torch.arange(0, len(drawn), fanout, device=ids.device), most)
            return indptr, torch.where(at >= 0, drawn[at.clamp(min=0)], PADDING)
        edge_ids = torch.full((most,), PADDING, dtype=dtype, device=ids.device)
        self._picks.pick_different(begins, degrees, ids, fanout, key, indptr, edge_ids)
        return indptr, edge_ids


def number_sources(ids: Tensor, sources: Tensor, room: int) -> tuple[Tensor, Tensor, Tensor]:
    """Number the sources of a hop's edges: destinations first, then new sources in the order in which they appear.

    Appearances are sorted by vertex, stably. So the first one of each vertex is known without a table, and without a race. The result:
    local ids of the sources, int64 [num_edges]; the ids of all numbered vertices, int64 [room], as far as there is room; and their number,
    int64 []. Padding has no number.

    Example:
        >>> local_ids, known, count = number_sources(torch.tensor([7, 3, -1]), torch.tensor([9, 3, 4, 9, -1]), 6)
        >>> local_ids.tolist(), known.tolist(), int(count)
        ([2, 1, 3, 2, 0], [7, 3, 9, 4, -1, -1], 4)
    """
    vertices = torch.cat([ids, sources])
    at = torch.arange(len(vertices), device=vertices.device)
    in_order, order = vertices.sort(stable=True)
    begins = torch.ones_like(in_order, dtype=torch.bool)
    begins[1:] = in_order[1:] != in_order[:-1]
    # For every appearance, the position of its vertex's first one.
    first = torch.empty_like(order)
    first[order] = order[torch.where(begins, at, 0).cummax(0).values]
    counts = ((first == at) & (vertices >= 0)).cumsum(0)
    local_ids = torch.where(sources >= 0, counts[first[len(ids) :]] - 1, 0)
    numbers = torch.arange(1, room + 1, device=vertices.device)
    # The appearance with which each number begins.
    known = vertices[torch.searchsorted(counts, numbers).clamp(max=len(vertices) - 1)]
    return local_ids, torch.where(numbers <= counts[-1], known, PADDING), counts[-1]


def _rows_of(indptr: Tensor, room: int) -> Tensor:
    return torch.searchsorted(indptr, torch.arange(room, device=indptr.device), right=True) - 1


def _in_rows(indptr: Tensor, begins: Tensor, room: int) -> Tensor:
    """Positions of edges that lie in ranges which begin at ``begins``, one range for each row; PADDING beyond the last edge."""
    shifts = torch.cat([begins - indptr[:-1], begins.new_zeros(1)])
    edges = torch.arange(room, device=indptr.device)
    return torch.where(edges < indptr[-1], shifts[_rows_of(indptr, room)] + edges, PADDING)


def _out_edges(indptr: Tensor, indices: Tensor, num_src: int) -> Csr:
    """The edges by source, those last whose source is ``num_src``."""
    keys, order = indices.sort(stable=True)
    bounds = torch.arange(num_src + 1, dtype=keys.dtype, device=keys.device)
    rows = _rows_of(indptr, len(indices)).to(indices.dtype)
    return Csr(
        indptr=torch.searchsorted(keys, bounds), indices=rows[order], edge_ids=order.to(id_dtype(len(indices)))
    )

"""NeighborSampler: for some seeds, the in-edges of a number of hops, picked at random.

A batch is sampled by the thread that asks for it, and without Python's lock for nearly all of the time. Several threads sample several
batches at once. Compared with threads that share a batch, none of them waits for another one, and the result cannot depend on
their number.

References:
    Hamilton, Ying and Leskovec, Inductive Representation Learning on Large Graphs, NeurIPS 2017, Algorithm 2. We differ in that
    neighbours are picked without replacement by default.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.checks import first_true, require_ids, slices, wrong_form
from sagann.graph.random_numbers import key_of
from sagann.graph.rows import id_dtype, pick_rows
from sagann.graph.topology import Topology
from sagann.jit import Array
from sagann.sampling import numbering, picks
from sagann.sampling.arguments import (
    NEIGHBOURS,
    as_ids,
    require_drawable,
    require_fanouts,
    require_some,
    require_square,
)
from sagann.sampling.minibatch import MiniBatch

LARGEST_WEIGHT = 1e300
"Weights are at most this large, so that the sum of a destination's weights is finite."
# Slots of a thread's first table.
_FEWEST_SLOTS = 1 << 12


class Picked(NamedTuple):
    """The in-edges that a hop picks of some vertices; those of a vertex are in the order of the graph."""

    indptr: Array
    "Offsets of the edges of each vertex, int64."
    indices: Array
    "Holds the sources of the edges."
    positions: Array
    "Where the source of each edge stands in ``indices``."
    edge_ids: Array
    "Ids of the edges in the graph."
    edge_data: Mapping[str, Tensor]
    "Edge data of the edges."


class Edges(Protocol):
    """The in-edges of all vertices of a graph, wherever they lie."""

    def pick(self, vertices: Array, fanout: int, key: np.uint64, *, replace: bool, hop: int) -> Picked:
        """Pick ``fanout`` in-edges of each of some vertices, or all for -1; ``hop`` is its number, for errors."""


class InEdges:
    """The in-edges of the vertices from ``first_vertex`` on, which lie in memory or in mapped files; ids are those of ``topology``.

    ``weights`` names edge data by which edges are picked.
    """

    def __init__(self, topology: Topology, *, weights: str | None = None, first_vertex: int = 0) -> None:
        self._indptr, self._indices = (array.contiguous().numpy() for array in (topology.indptr, topology.indices))
        self._first_vertex, self._edge_data = first_vertex, topology.edge_data
        # Arguments of the picks besides those that all of them have.
        self._given = () if weights is None else (_checked_weights(topology, weights),)

    def pick(self, vertices: Array, fanout: int, key: np.uint64, *, replace: bool, hop: int) -> Picked:
        """Pick in-edges of some of the vertices; see :class:`Edges`."""
        num_edges = len(self._indices)
        replace = replace and fanout != -1
        fanout = num_edges if fanout == -1 else fanout
        begins, ends = np.empty_like(vertices), np.empty_like(vertices)
        rows = vertices - self._first_vertex if self._first_vertex else vertices
        most = picks.find_rows(self._indptr, rows, fanout, replace, begins, ends)
        if replace:
            require_drawable(most, len(vertices), fanout, where=f"fanouts, hop {hop}")
        indptr, positions = np.empty(len(vertices) + 1, dtype=np.int64), _empty(most, num_edges)
        uniform = picks.pick_uniform, picks.pick_uniform_replacing
        pick = (picks.pick_weighted, picks.pick_weighted_replacing)[replace] if self._given else uniform[replace]
        count = pick(begins, ends, vertices, fanout, key, indptr, positions, *self._given)
        # Edges of weight 0 leave room.
        positions = positions if count == most else positions[:count].copy()
        edge_data = {name: _rows_at(positions, rows) for name, rows in self._edge_data.items()}
        return Picked(indptr, self._indices, positions, positions, edge_data)


class NeighborSampler:
    """Samples the in-edges of seeds, of the seeds' in-neighbours, and so on, hop by hop.

    A batch depends on the topology, the sampler's arguments, the seeds, ``epoch`` and ``batch`` alone: not on threads, and not on
    earlier batches. A sampler may be used by several threads at once. Each thread keeps memory for its next batch.

    Args:
        topology: a whole graph's. Its arrays may be mapped from files: only what a batch needs is read.
        fanouts: number of in-edges to pick for each destination of a hop. The first number is that of the hop nearest the
            seeds. -1 picks all in-edges, once each. At most 65,536 with ``replace``. A destination with fewer edges gives all of them, unless ``replace`` is set.
        replace: pick with replacement: every destination that has in-edges gives as many edges as the hop's number, and an edge
            may stand several times.
        weights: name of edge data, float32 or float64 [num_edges]: edges are picked in proportion to their weights, and edges
            of weight 0 never. Without a name, all edges are picked with equal probability. Weights are read whole
            once, when the sampler is made.
        seed: seed of the run.
    Raises:
        InputError: an argument has the wrong form, or a weight is negative or NaN or requires a gradient.
        LayerError: edges were overwritten.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([1, 2, 3, 2]), dst=torch.tensor([0, 0, 0, 1]), num_src=4)
        >>> sampled = NeighborSampler(topology, [2, -1]).sample(torch.tensor([0]))
        >>> [(block.num_src, block.num_dst, block.num_edges) for block in sampled.blocks]
        [(4, 3, 4), (3, 1, 2)]
        >>> sampled.src_ids.tolist()
        [0, 1, 3, 2]
    """

    def __init__(
        self,
        topology: Topology,
        fanouts: Sequence[int],
        *,
        replace: bool = False,
        weights: str | None = None,
        seed: int = 0,
    ) -> None:
        require_square(topology, where="NeighborSampler.topology")
        self.topology = topology
        self.fanouts = require_fanouts(fanouts, replace=replace, where="fanouts")
        self.replace = replace
        self.weights = weights
        self.seed = seed
        self.edges: Edges = InEdges(topology, weights=weights)
        "Picks the edges; by default those of the topology."
        self._scratch = _Scratch()

    def sample(self, seeds: Tensor | Sequence[int], *, epoch: int = 0, batch: int = 0) -> MiniBatch:
        """Sample the blocks of some seeds.

        Args:
            seeds: int64 [num_seeds], distinct vertex ids, at least one; a tensor, a list or a NumPy array.
            epoch: number of the epoch.
            batch: number of the batch in its epoch.
        Returns:
            the blocks. Sources have local ids in the order in which they appear: a block's destinations, then new sources by
            destination and by edge. The edges of a destination are in the order of the graph.
        Raises:
            InputError: a seed is no vertex or stands twice, or there is none; or edges that are picked with replacement are more than
                2**28 in a hop.
            LayerError: edges were overwritten.
        """
        self.topology.require_unwritten()
        seeds = as_ids(seeds, where="seeds")
        require_ids(seeds, self.topology.num_dst, where="seeds")
        require_some(seeds)
        seeds = seeds.cpu()
        scratch, num_vertices = self._scratch, self.topology.num_src
        ids = scratch.ids_with_room(0, len(seeds))
        table = scratch.table(np.dtype(np.int32 if id_dtype(num_vertices) == torch.int32 else np.int64))
        repeated, table = numbering.number_seeds(seeds.contiguous().numpy(), ids, table, num_vertices)
        if repeated >= 0:
            raise InputError(
                f"seed repeated: {int(seeds[repeated])} stands a second time at position {repeated} (in seeds)",
                hint="Pass every seed once; unique() also gives the position of each seed in the result.",
            )
        num_ids, blocks = len(seeds), []
        for hop, fanout in enumerate(self.fanouts):
            key = key_of(self.seed, NEIGHBOURS, epoch, batch, hop)
            picked = self.edges.pick(scratch.ids[:num_ids], fanout, key, replace=self.replace, hop=hop)
            num_edges = len(picked.positions)
            ids = scratch.ids_with_room(num_ids, min(num_edges, num_vertices - num_ids))
            local_ids = _empty(num_edges, num_ids + num_edges)
            num_ids, table = numbering.number_sources(
                picked.indices, picked.positions, ids, num_ids, table, num_vertices, local_ids
            )
            blocks.append(
                Topology(
                    indptr=torch.from_numpy(picked.indptr),
                    indices=torch.from_numpy(local_ids),
                    num_src=num_ids,
                    edge_data=picked.edge_data,
                    edge_ids=torch.from_numpy(picked.edge_ids),
                    validate=False,
                )
            )
        scratch.keep(table, num_ids)
        src_ids = torch.from_numpy(scratch.ids[:num_ids].copy())
        return MiniBatch(blocks=tuple(reversed(blocks)), src_ids=src_ids, seeds=seeds)


class _Scratch(threading.local):
    """A thread's memory, kept from one batch to the next."""

    def __init__(self) -> None:
        self.ids: Array = np.empty(0, dtype=np.int64)
        "Ids in the graph of the vertices that have local ids."
        self._table: Array | None = None
        self._num_slots = _FEWEST_SLOTS

    def ids_with_room(self, num_ids: int, added: int) -> Array:
        """The ids, with room for ``added`` more than the ``num_ids`` that there are, and for one that is written in vain."""
        if num_ids + added >= len(self.ids):
            larger = np.empty(2 * (num_ids + added) + 1, dtype=np.int64)
            larger[:num_ids] = self.ids[:num_ids]
            self.ids = larger
        return self.ids

    def table(self, dtype: np.dtype[Any]) -> Array:
        """A table with room for a batch like the last one."""
        if self._table is None:
            self._table = numbering.new_table(self._num_slots, dtype)
        return self._table[: 2 * self._num_slots]

    def keep(self, table: Array, num_ids: int) -> None:
        """Keep the table of a batch with ``num_ids`` vertices for the next batch, which clears no more slots than it needs."""
        assert self._table is not None
        if len(table) > len(self._table):
            self._table = table
        self._num_slots = min(len(self._table) // 2, max(_FEWEST_SLOTS, 2 << num_ids.bit_length()))


def _empty(length: int, num_ids: int) -> Array:
    """An uninitialised array for ids below ``num_ids``."""
    return np.empty(length, dtype=np.int32 if id_dtype(num_ids) == torch.int32 else np.int64)


def _rows_at(edge_ids: Array, rows: Tensor) -> Tensor:
    """Rows of edge data, differentiable where they learn."""
    ids = torch.from_numpy(edge_ids)
    if rows.requires_grad:
        return rows.index_select(0, ids)
    # On this thread alone: others have batches of their own.
    return pick_rows(rows, ids, rows.new_empty(len(ids), *rows.shape[1:]))


def _checked_weights(topology: Topology, name: str) -> Array:
    """Edge data by which edges can be picked."""
    where = f"edge data '{name}'"
    if name not in topology.edge_data:
        raise InputError(
            f"the topology has no edge data of that name: '{name}', there are "
            f"{', '.join(sorted(topology.edge_data)) or 'none'} (in NeighborSampler.weights)",
            hint="Add weights with topology.with_edge_data(NAME=...), or name others.",
        )
    weights = topology.edge_data[name]
    if weights.dtype not in (torch.float32, torch.float64) or weights.ndim != 1:
        expected = "torch.float32 or torch.float64 [num_edges]"
        raise wrong_form(weights, expected, where=where, hint="Convert the weights with .to(torch.float32).")
    if weights.requires_grad:
        raise InputError(
            f"weights that learn do not pick edges: they require a gradient, and are read once (in {where})",
            hint="Pick by a copy of another name, made by .detach().clone().",
        )
    for part in slices(len(weights)):
        # Written so that NaN is found too.
        at = first_true(~((weights[part] >= 0) & (weights[part] <= LARGEST_WEIGHT)))
        if at is not None:
            raise InputError(
                f"weight of an edge out of range: {float(weights[part][at]):g}, expected a number from 0 to "
                f"{LARGEST_WEIGHT:g} (in {where}, edge {part.start + at})",
                hint="Replace negative, NaN and infinite weights; 0 leaves an edge out.",
            )
    return weights.contiguous().numpy()

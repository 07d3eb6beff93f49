"""DeviceSampler: a CUDA device samples the blocks that NeighborSampler samples on the processor, bit by bit.

The random numbers, the order of edges and the numbering of sources are the same. So a run may sample on either, and be resumed on the other.
Edges lie where the device reads them: in its own memory, or in pinned memory of the host, in place.

Picks are kernels (:mod:`sagann.kernels.edge_picks`). All other steps are sorts, sums and selections of PyTorch, which have one result whatever order
the device works in. The host waits for the device in each hop, for the numbers of its edges, of its new sources and, with replacement, of its destinations that
have edges.

Tests run it in Triton's interpreter.

References:
    Min et al., Graph Neural Network Training with Data Tiering, 2021, Sec. 5.5: the device samples, and the edges lie over the memory of several
    devices. We differ in that they lie on one device or in the host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from sagann.errors import InputError, MissingDependencyError
from sagann.graph.checks import require_distinct
from sagann.graph.random_numbers import key_of
from sagann.graph.rows import id_dtype, offsets_of
from sagann.graph.topology import Topology, for_training_as_well
from sagann.runtime.tiered.device_topology import DeviceTopology
from sagann.sampling import MiniBatch
from sagann.sampling.arguments import (
    NEIGHBOURS,
    as_ids,
    require_drawable,
    require_fanouts,
    require_some,
)


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

    def sample(self, seeds: Tensor | Sequence[int], *, epoch: int = 0, batch: int = 0) -> MiniBatch:
        """Sample the blocks of some seeds: see :meth:`sagann.sampling.NeighborSampler.sample`. All tensors of the result lie on the device."""
        seeds = as_ids(seeds, where="seeds")
        require_distinct(seeds, self.edges.num_vertices, where="seeds")
        require_some(seeds)
        blocks: list[Topology] = []
        with for_training_as_well():
            seeds = ids = seeds.to(self.edges.device)
            for hop, fanout in enumerate(self.fanouts):
                key = int(key_of(self.seed, NEIGHBOURS, epoch, batch, hop))
                indptr, edge_ids = self._picked(ids, fanout, key, hop)
                local_ids, known = number_sources(ids, self.edges.sources(edge_ids).long())
                block = Topology(
                    indptr=indptr,
                    indices=local_ids.to(id_dtype(len(ids) + len(edge_ids))),
                    num_src=len(known),
                    edge_data=self.edges.edge_data(edge_ids),
                    edge_ids=edge_ids,
                    validate=False,
                )
                blocks.append(block)
                ids = known
        return MiniBatch(blocks=tuple(reversed(blocks)), src_ids=ids, seeds=seeds)

    def _picked(self, vertices: Tensor, fanout: int, key: int, hop: int) -> tuple[Tensor, Tensor]:
        """Offsets and ids of the edges that a hop picks of the in-edges of some vertices."""
        begins = self.edges.offsets(vertices)
        degrees = self.edges.offsets(vertices + 1) - begins
        replace = self.replace and fanout != -1
        counts = degrees
        if replace:
            counts = (degrees > 0) * fanout
        elif fanout != -1:
            counts = degrees.clamp(max=fanout)
        indptr = offsets_of(counts)
        num_picks = int(indptr[-1])
        if replace:
            require_drawable(num_picks, len(vertices), fanout, where=f"fanouts, hop {hop}")
        dtype = id_dtype(self.edges.num_edges)
        if fanout == -1:
            first = torch.repeat_interleave(begins - indptr[:-1], counts, output_size=num_picks)
            return indptr, (first + torch.arange(num_picks, device=vertices.device)).to(dtype)
        edge_ids = torch.empty(num_picks, dtype=dtype, device=vertices.device)
        if replace:
            with_edges = degrees.nonzero().squeeze(1)
            of_rows = (each[with_edges] for each in (begins, degrees, vertices))
            self._picks.draw(*of_rows, fanout, key, edge_ids)
            # A destination's edges are in the order of the graph.
            return indptr, edge_ids.view(-1, fanout).sort(dim=1).values.view(-1)
        self._picks.pick_different(begins, degrees, vertices, fanout, key, indptr, edge_ids)
        return indptr, edge_ids


def number_sources(ids: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Number the sources of a hop's edges: destinations first, then new sources in the order in which they appear.

    Appearances are sorted by vertex, stably. So the first one of each vertex is known without a table, and without a race.

    Args:
        ids: distinct ids of the destinations, int64 [num_dst].
        sources: ids of the edges' sources, int64 [num_edges].
    Returns:
        local ids of the sources, int64 [num_edges]; and the ids of all numbered vertices, int64 [num_src].
    Example:
        >>> local_ids, known = number_sources(torch.tensor([7, 3]), torch.tensor([9, 3, 4, 9]))
        >>> local_ids.tolist(), known.tolist()
        ([2, 1, 3, 2], [7, 3, 9, 4])
    """
    vertices = torch.cat([ids, sources])
    at = torch.arange(len(vertices), device=vertices.device)
    in_order, order = vertices.sort(stable=True)
    begins = torch.ones_like(in_order, dtype=torch.bool)
    begins[1:] = in_order[1:] != in_order[:-1]
    # For every appearance, the position of its vertex's first one.
    first = torch.empty_like(order)
    first[order] = order[torch.where(begins, at, 0).cummax(0).values]
    is_new = first == at
    numbers = is_new.cumsum(0) - 1
    return numbers[first][len(ids) :], vertices[is_new]

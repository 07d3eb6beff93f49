"""Links: pairs of vertices to tell apart, those that are joined and those that are not, and the seeds of a batch of them.

A positive link is a pair ``src -> dst`` of the caller's. For each of them some negative links are drawn, to learn from
(:class:`LinkSampler`) or to measure a model by (:func:`negative_destinations`). A negative link is no edge and joins no vertex to itself: it
is drawn again until it is neither. Draws depend on seed, epoch, batch and the position of the link alone.

References:
    Kipf and Welling, Variational Graph Auto-Encoders, NeurIPS workshop on Bayesian Deep Learning 2016 (links from the embeddings of
    their ends); Bordes et al., Translating Embeddings for Modeling Multi-relational Data, NeurIPS 2013, Sec. 2 (one end of a link
    replaced). We differ in that only destinations are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError, require_choice
from sagann.graph.checks import require_ids
from sagann.graph.random_numbers import GOLDEN, below, key_of, mix, stream_of
from sagann.graph.row_sort import rows_ascend, sort_rows
from sagann.graph.rows import Arrays, id_dtype
from sagann.graph.topology import Topology
from sagann.jit import Array, compiled
from sagann.ranges import require_integer
from sagann.sampling.arguments import LINKS, MEASURED_LINKS, require_square

Negatives = Literal["uniform", "structured"]
"uniform: both ends are drawn. structured: the source is that of the positive link, the destination is drawn."

MOST_DRAWS = 1000
"Most times that a negative link is drawn because it is an edge, or joins a vertex to itself."
_NO_PARTS = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Links(Arrays):
    """The links of a batch. Positive links come first, then the negative ones, by positive link.

    With ``rows`` a model's result for ``seeds``, ``(rows[links.src] * rows[links.dst]).sum(1)`` is a score for each link.
    """

    seeds: Tensor
    "int64 [num_seeds]: ids in the graph of the ends of all links, each once, ascending."
    src: Tensor
    "int64 [num_links]: positions of the sources among the seeds."
    dst: Tensor
    "int64 [num_links]: positions of the destinations among the seeds."
    labels: Tensor
    "float32 [num_links]: 1 for positive links, 0 for negative ones."
    num_positive: int
    "Number of positive links."
    types: Tensor | None = None
    "int64 [num_positive]: types of the positive links, and of the negative ones drawn for them; None where links have none."

    def side_by_side(self) -> tuple[Tensor, Tensor]:
        """Positions of sources and destinations, [num_positive, 1 + negatives] each: a positive link, then the negative ones drawn for it."""
        return beside(self.src, self.num_positive), beside(self.dst, self.num_positive)


def beside(ends: Tensor, num_positive: int) -> Tensor:
    """Ends of positive links, and after them of the negative ones by positive link, as rows [num_positive, 1 + negatives]; [0, 1] without links."""
    positive, negative = ends.split([num_positive, len(ends) - num_positive])
    # Written out: PyTorch infers no width of a matrix without rows.
    width = len(negative) // max(1, num_positive)
    return torch.cat([positive.unsqueeze(1), negative.view(num_positive, width)], dim=1)


class LinkSampler:
    """Draws negative links, and gives the seeds of a batch of links.

    Args:
        topology: a whole graph's. Where the in-edges of a vertex do not ascend by source, as :meth:`~sagann.Topology.from_coo` sorts
            them, a sorted copy of all sources is kept with the topology.
        negatives: number of negative links for each positive one; 0 for none. None of them is an edge, or joins a vertex to itself.
        how: ``"uniform"`` draws both ends; ``"structured"`` keeps the source of the positive link and draws the destination.
        undirected: the reverse of an edge counts as an edge, as it does for a decoder that scores both alike.
        seed: seed of the run.
    Raises:
        InputError: an argument has the wrong form.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([1, 2]), num_src=3)
        >>> links = LinkSampler(topology, how="structured").sample(torch.tensor([0]), torch.tensor([1]))
        >>> links.labels.tolist(), links.seeds[links.src].tolist(), int(links.seeds[links.dst][0])
        ([1.0, 0.0], [0, 0], 1)
    """

    def __init__(
        self,
        topology: Topology,
        *,
        negatives: int = 1,
        how: Negatives = "uniform",
        undirected: bool = False,
        seed: int = 0,
    ) -> None:
        require_square(topology, where="LinkSampler.topology")
        require_integer(negatives, "negatives", where="LinkSampler.negatives")
        require_choice(how, get_args(Negatives), what="unknown way to draw negative links", where="LinkSampler.how")
        # Sorted now, not by several threads at once.
        _ordered_edges(topology)
        self.topology, self.negatives, self.how = topology, negatives, how
        self.undirected, self.seed = undirected, seed

    def sample(self, src: Tensor, dst: Tensor, *, epoch: int = 0, batch: int = 0, first: int = 0) -> Links:
        """Draw the negative links of some positive ones.

        Args:
            src: int64 [num_positive], sources of the positive links.
            dst: int64 [num_positive], their destinations.
            epoch: number of the epoch.
            batch: number of the batch in its epoch.
            first: number of the first of these links in its batch.
        Raises:
            InputError: an end is no vertex, or no negative link is found.
            LayerError: edges were overwritten.
        """
        for name, ends in (("src", src), ("dst", dst)):
            require_ids(ends, self.topology.num_dst, where=f"LinkSampler.sample, {name}")
        if len(src) != len(dst):
            raise InputError(
                f"links have different numbers of sources and destinations: {len(src)} and {len(dst)} (in "
                "LinkSampler.sample)",
                hint="Pass one source and one destination for each link.",
            )
        src, dst = src.cpu(), dst.cpu()
        negative = self.negatives_of(src, epoch=epoch, batch=batch, first=first)
        seeds, positions = torch.cat([src, dst, *negative]).unique(return_inverse=True)
        count, num_negative = len(src), len(negative[0])
        ends = positions.split([count, count, num_negative, num_negative])
        return Links(
            seeds=seeds,
            src=torch.cat(ends[::2]),
            dst=torch.cat(ends[1::2]),
            labels=torch.cat([torch.ones(count), torch.zeros(num_negative)]),
            num_positive=count,
        )

    def negatives_of(self, src: Tensor, *, epoch: int, batch: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Sources and destinations of the negative links of positive ones, int64 [num_positive * negatives], by positive link.

        The arguments are as for :meth:`sample`, which checks them.
        """
        sources, destinations, failed = _drawn(
            self.topology,
            src.repeat_interleave(self.negatives),
            key_of(self.seed, LINKS, epoch, batch),
            first * self.negatives,
            draws_sources=self.how == "uniform",
            avoids=1 + self.undirected,
        )
        if len(failed):
            where = f"LinkSampler.sample, positive link {first + int(failed[0]) // self.negatives}"
            raise _not_found(
                where, "The graph has nearly all edges there; take one with fewer edges, or more vertices."
            )
        return sources, destinations


def negative_destinations(
    topology: Topology, src: Tensor, negatives: int, *, seed: int = 0, first: int = 0, undirected: bool = False
) -> Tensor:
    """Draw the negative links that a positive link is ranked among: from the same source, to other vertices that it has no edge to.

    All of these vertices are equally likely. A vertex may be drawn several times for a link.

    Args:
        topology: the known edges, those to validate and test on among them, as for :class:`LinkSampler`.
        src: int64 [num_links], sources of the links.
        negatives: number of destinations to draw for each link.
        seed: seed of the draw.
        first: number of the first of these links. Draws depend on the seed and on a link's number alone, so a large
            number of links may be measured slice by slice.
        undirected: the reverse of an edge counts as an edge.
    Returns:
        int64 [num_links, negatives].
    Raises:
        InputError: an argument has the wrong form, or no such destination is found.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 0, 0]), dst=torch.tensor([0, 1, 3]), num_src=4)
        >>> negative_destinations(topology, torch.tensor([0]), 3)
        tensor([[2, 2, 2]])
    """
    where = "negative_destinations"
    require_square(topology, where=f"{where}, topology")
    require_ids(src, topology.num_dst, where=f"{where}, src")
    require_integer(negatives, "negatives", where=f"{where}, negatives")
    destinations, failed = found_destinations(
        topology, src, negatives, seed=seed, first=first, avoids=1 + undirected
    )
    if len(failed):
        hint = "The source is joined to nearly all vertices; leave this link out."
        raise _not_found(f"{where}, link {first + int(failed[0])}", hint)
    return destinations


def found_destinations(
    topology: Topology,
    src: Tensor,
    negatives: int,
    *,
    seed: int,
    avoids: int,
    first: int = 0,
    parts: Tensor = _NO_PARTS,
) -> tuple[Tensor, Tensor]:
    """As :func:`negative_destinations`, for arguments that are checked, without an error where a source is joined to nearly all vertices.

    ``avoids`` is 1 to avoid edges, 2 to avoid their reverses too. Links of different ``parts``, uint8 [num_links] below 3, share no negative link,
    unless a source has too few. Returns destinations int64 [num_links, negatives], and the numbers of the links for which some are not found.
    """
    sources, key = src.cpu().repeat_interleave(negatives), key_of(seed, MEASURED_LINKS)
    parts = parts.repeat_interleave(negatives)
    _, destinations, failed = _drawn(topology, sources, key, first * negatives, parts=parts, avoids=avoids)
    return destinations.view(len(src), negatives), (failed // max(1, negatives)).unique()


def _drawn(
    topology: Topology,
    sources: Tensor,
    key: np.uint64,
    first: int,
    *,
    parts: Tensor = _NO_PARTS,
    draws_sources: bool = False,
    avoids: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sources and destinations of negative links, of which the first one has the number ``first``, and the positions of those that are not found.

    ``sources`` are overwritten where they are drawn, too. ``avoids`` is 1 to avoid edges, 2 to avoid their reverses as well.
    """
    edges = topology.indptr.contiguous().numpy(), _ordered_edges(topology)[0].numpy()
    destinations, failed = torch.zeros_like(sources), torch.zeros(len(sources), dtype=torch.bool)
    drawn = sources.numpy(), destinations.numpy(), parts.numpy(), failed.numpy()
    _draw(*edges, key, first, draws_sources, avoids, *drawn)
    return sources, destinations, failed.nonzero().squeeze(1)


def _not_found(where: str, hint: str) -> InputError:
    what = f"no negative link found: {MOST_DRAWS} links drawn, each of them an edge or a self-loop"
    return InputError(f"{what} (in {where})", hint=hint)


def are_edges(topology: Topology, src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
    """Whether links are edges of a topology in memory of the processor, of the same type where edges have types: bool [num_links]."""
    found = torch.zeros(len(src), dtype=torch.bool)
    sources, edge_types = _ordered_edges(topology)
    if types is None or edge_types is None:
        # A function of one signature reads no type.
        edge_types, types = sources[:0], src[:0]
    arrays = (topology.indptr, sources, edge_types, src, dst, types, found)
    _mark_edges(*(array.cpu().contiguous().numpy() for array in arrays))
    return found


def _ordered_edges(topology: Topology) -> tuple[Tensor, Tensor | None]:
    """Sources of all edges by destination, those of a destination ascending, and the edges' types, or None.

    These are the topology's own arrays, or sorted copies. A LayerError where edges were overwritten.
    """
    topology.require_unwritten()

    def ordered() -> tuple[Tensor, Tensor | None]:
        sources, types = topology.indices.contiguous(), topology.edge_data.get("type")
        if rows_ascend(topology.indptr, sources):
            return sources, types
        sources = sources.clone()
        order = None if types is None else torch.arange(len(sources), dtype=id_dtype(len(sources)))
        sort_rows(topology.indptr.contiguous(), sources, order)
        return sources, None if types is None or order is None else types[order]

    found: tuple[Tensor, Tensor | None] = topology.derived("ordered edges", ordered)
    return found


@compiled()
def _draw(
    indptr: Array,
    indices: Array,
    key: Any,
    first: int,
    draws_sources: bool,
    avoids: int,
    sources: Array,
    destinations: Array,
    parts: Array,
    failed: Array,
) -> None:
    """Draw the destinations of links, and their sources where asked for; mark the links that are not found.

    A hash divides all pairs of vertices among the ``parts`` of the links, if there are any. A source that finds none of its own part takes others.
    """
    num_vertices = len(indptr) - 1
    for link in range(len(sources)):
        state = stream_of(key, first + link)
        is_wrong, num_draws = True, 0
        while is_wrong:
            if num_draws == MOST_DRAWS:
                failed[link] = True
                break
            if draws_sources:
                state += GOLDEN
                sources[link] = below(mix(state), num_vertices)
            state += GOLDEN
            destinations[link] = below(mix(state), num_vertices)
            src, dst = sources[link], destinations[link]
            is_wrong = (
                src == dst
                or _is_edge(indptr, indices, src, dst)
                or (avoids > 1 and _is_edge(indptr, indices, dst, src))
            )
            if not is_wrong and len(parts) > 0 and num_draws < MOST_DRAWS // 2:
                if avoids > 1 and dst < src:
                    src, dst = dst, src
                is_wrong = stream_of(stream_of(key, src), dst) % np.uint64(3) != parts[link]
            num_draws += 1


@compiled()
def _mark_edges(
    indptr: Array,
    indices: Array,
    edge_types: Array,
    sources: Array,
    destinations: Array,
    types: Array,
    found: Array,
) -> None:
    """Mark the links that are edges, of the same type if there are types; arrays of no types are empty."""
    for link in range(len(sources)):
        edge = _first_edge(indptr, indices, sources[link], destinations[link])
        stop = indptr[destinations[link] + 1]
        while not found[link] and edge < stop and indices[edge] == sources[link]:
            found[link] = len(types) == 0 or edge_types[edge] == types[link]
            edge += 1


@compiled()
def _is_edge(indptr: Array, indices: Array, source: int, destination: int) -> bool:
    """Whether an edge leads from one vertex to the other."""
    edge = _first_edge(indptr, indices, source, destination)
    return edge < indptr[destination + 1] and indices[edge] == source


@compiled()
def _first_edge(indptr: Array, indices: Array, source: int, destination: int) -> int:
    """The first in-edge of a destination whose source is not below ``source``, by bisection; or the end of its in-edges."""
    first, stop = indptr[destination], indptr[destination + 1]
    while first < stop:
        middle = (first + stop) // 2
        if indices[middle] < source:
            first = middle + 1
        else:
            stop = middle
    found: int = first
    return found

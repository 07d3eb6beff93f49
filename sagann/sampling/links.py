"""Links: pairs of vertices to tell apart, those that are joined and those that are not, and the seeds of a batch of them.

A positive link is a pair ``src -> dst`` of the caller's. For each of them some negative links are drawn, to learn from
(:class:`LinkSampler`) or to measure a model by (:func:`negative_destinations`). Draws depend on seed, epoch, batch and the position of
the link alone.

References:
    Kipf and Welling, Variational Graph Auto-Encoders, NeurIPS workshop on Bayesian Deep Learning 2016 (links from the embeddings of
    their ends); Bordes et al., Translating Embeddings for Modeling Multi-relational Data, NeurIPS 2013, Sec. 2 (one end of a link
    replaced). We differ in that only destinations are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError, require_choice, require_type
from sagann.graph.random_numbers import GOLDEN, below, key_of, mix, stream_of
from sagann.graph.topology import Topology
from sagann.machine_code import compiled
from sagann.ranges import require_integer
from sagann.sampling.arguments import LINKS, MEASURED_LINKS, require_ids, require_square

Array: TypeAlias = np.ndarray[Any, Any]

Negatives = Literal["uniform", "structured"]
"uniform: both ends are drawn. structured: the source is that of the positive link, the destination is drawn."

MOST_DRAWS = 1000
"Number of times that a negative link is drawn anew because it is an edge."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Links:
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

    def mapped(self, move: Callable[[Tensor], Tensor]) -> Links:
        """The same links with every array replaced by the result of ``move``, for example a copy on a device."""
        return replace(
            self,
            seeds=move(self.seeds),
            src=move(self.src),
            dst=move(self.dst),
            labels=move(self.labels),
            types=None if self.types is None else move(self.types),
        )


def beside(ends: Tensor, num_positive: int) -> Tensor:
    """Ends of positive links, and after them of the negative ones by positive link, as rows [num_positive, 1 + negatives]."""
    positive, negative = ends.split([num_positive, len(ends) - num_positive])
    return torch.cat([positive.unsqueeze(1), negative.view(num_positive, -1)], dim=1)


class LinkSampler:
    """Draws negative links, and gives the seeds of a batch of links.

    Args:
        topology: a whole graph's, whose in-edges ascend by source for every destination, as :meth:`~sagann.Topology.from_coo`
            sorts them.
        negatives: number of negative links for each positive one; 0 for none.
        how: ``"uniform"`` draws both ends; ``"structured"`` keeps the source of the positive link and draws the destination.
        avoid_edges: draw again while a negative link is an edge of the topology.
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
        avoid_edges: bool = True,
        seed: int = 0,
    ) -> None:
        require_square(topology, where="LinkSampler.topology")
        require_integer(negatives, "negatives", where="LinkSampler.negatives")
        require_choice(how, get_args(Negatives), what="unknown way to draw negative links", where="LinkSampler.how")
        require_type(avoid_edges, bool, where="LinkSampler.avoid_edges", fix="Pass True or False.")
        require_type(seed, int, where="LinkSampler.seed", fix="Pass a whole number.")
        self.topology = topology
        self.negatives = negatives
        self.how = how
        self.avoid_edges = avoid_edges
        self.seed = seed

    def sample(self, src: Tensor, dst: Tensor, *, epoch: int = 0, batch: int = 0) -> Links:
        """Draw the negative links of some positive ones.

        Args:
            src: int64 [num_positive], sources of the positive links.
            dst: int64 [num_positive], their destinations.
            epoch: number of the epoch.
            batch: number of the batch in its epoch.
        Raises:
            InputError: an end is no vertex, or no negative link is found.
        """
        for name, ends in (("src", src), ("dst", dst)):
            require_ids(ends, self.topology.num_dst, where=f"LinkSampler.sample, {name}")
        for name, number in (("epoch", epoch), ("batch", batch)):
            require_integer(number, name, where=f"LinkSampler.sample, {name}")
        if len(src) != len(dst):
            raise InputError(
                "links have different numbers of sources and destinations",
                value=f"{len(src)} and {len(dst)}",
                where="LinkSampler.sample",
                fix="Pass one source and one destination for each link.",
            )
        src, dst = src.cpu(), dst.cpu()
        negative = self.negatives_of(src, epoch=epoch, batch=batch)
        seeds, positions = torch.cat([src, dst, *negative]).unique(return_inverse=True)
        num_positive, num_negative = len(src), len(negative[0])
        ends = positions.split([num_positive, num_positive, num_negative, num_negative])
        return Links(
            seeds=seeds,
            src=torch.cat([ends[0], ends[2]]),
            dst=torch.cat([ends[1], ends[3]]),
            labels=torch.cat([torch.ones(num_positive), torch.zeros(num_negative)]),
            num_positive=num_positive,
        )

    def negatives_of(self, src: Tensor, *, epoch: int, batch: int) -> tuple[Tensor, Tensor]:
        """Sources and destinations of the negative links of positive ones, int64 [num_positive * negatives], by positive link.

        The arguments are as for :meth:`sample`, which checks them.
        """
        return _drawn(
            self.topology,
            src.repeat_interleave(self.negatives),
            key_of(self.seed, LINKS, epoch, batch),
            draws_sources=self.how == "uniform",
            most_draws=MOST_DRAWS if self.avoid_edges else 0,
            where=lambda link: f"LinkSampler.sample, positive link {link // self.negatives}",
            fix="The graph has nearly all edges there; pass avoid_edges=False.",
        )


def negative_destinations(
    topology: Topology, src: Tensor, negatives: int, *, seed: int = 0, first: int = 0
) -> Tensor:
    """Draw the negative links that a positive link is ranked among: from the same source, to vertices that it has no edge to.

    All of these vertices are equally likely, the source itself among them if it has no self-loop. A vertex may be drawn several times
    for a link.

    Args:
        topology: the known edges, those to validate and test on among them, as for :class:`LinkSampler`.
        src: int64 [num_links], sources of the links.
        negatives: number of destinations to draw for each link.
        seed: seed of the draw.
        first: number of the first of these links. Draws depend on the seed and on a link's number alone, so a large
            number of links may be measured slice by slice.
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
    require_type(seed, int, where=f"{where}, seed", fix="Pass a whole number.")
    require_integer(first, "num_edges", where=f"{where}, first")
    _, destinations = _drawn(
        topology,
        src.cpu().repeat_interleave(negatives),
        key_of(seed, MEASURED_LINKS),
        draws_sources=False,
        most_draws=MOST_DRAWS,
        first=first * negatives,
        where=lambda link: f"{where}, link {first + link // negatives}",
        fix="The source is joined to nearly all vertices; leave this link out.",
    )
    return destinations.view(len(src), negatives)


def _drawn(
    topology: Topology,
    sources: Tensor,
    key: np.uint64,
    *,
    draws_sources: bool,
    most_draws: int,
    first: int = 0,
    where: Callable[[int], str],
    fix: str,
) -> tuple[Tensor, Tensor]:
    """Sources and destinations of negative links; the first one has the number ``first``. Overwrites ``sources``."""
    destinations = torch.empty_like(sources)
    indptr, indices = (array.contiguous().numpy() for array in (topology.indptr, topology.indices))
    failed = _draw(indptr, indices, key, first, draws_sources, most_draws, sources.numpy(), destinations.numpy())
    if failed >= 0:
        raise InputError(
            "no negative link found",
            value=f"{most_draws} links drawn, each of them an edge",
            where=where(failed),
            fix=fix,
        )
    return sources, destinations


@compiled()
def _draw(
    indptr: Array,
    indices: Array,
    key: Any,
    first: int,
    draws_sources: bool,
    most_draws: int,
    sources: Array,
    destinations: Array,
) -> int:
    """Draw the destinations of links, and their sources where asked for; returns the first link that is not found, or -1.

    With ``most_draws`` 0 a link may be an edge.
    """
    num_vertices = len(indptr) - 1
    for link in range(len(sources)):
        state = stream_of(key, first + link)
        is_edge, num_draws = True, 0
        while is_edge:
            if draws_sources:
                state += GOLDEN
                sources[link] = below(mix(state), num_vertices)
            state += GOLDEN
            destinations[link] = below(mix(state), num_vertices)
            is_edge = most_draws > 0 and _is_edge(indptr, indices, sources[link], destinations[link])
            num_draws += 1
            if is_edge and num_draws == most_draws:
                return link
    return -1


@compiled()
def _is_edge(indptr: Array, indices: Array, source: int, destination: int) -> bool:
    """Whether an edge leads from one vertex to the other, by bisection of the destination's in-edges."""
    first, stop = indptr[destination], indptr[destination + 1]
    end = stop
    while first < stop:
        middle = (first + stop) // 2
        if indices[middle] < source:
            first = middle + 1
        else:
            stop = middle
    return first < end and indices[first] == source

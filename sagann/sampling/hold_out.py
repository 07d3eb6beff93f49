"""Hold links out of a graph, to validate and test a model that learns links."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph import SPLIT_NAMES, Graph
from sagann.graph.checks import first_true
from sagann.graph.graph import LEARNED, SPLIT_OF_EDGES, VALIDATED
from sagann.graph.measured_links import MeasuredLinks
from sagann.graph.split import generator_of, refused
from sagann.graph.split_edges import edge_split
from sagann.graph.topology import Topology
from sagann.graph.transform import keep_edges
from sagann.ranges import require_integer
from sagann.sampling.arguments import require_square
from sagann.sampling.links import Links, LinkSampler, found_destinations
from sagann.sampling.minibatch import MiniBatch

NEGATIVES = 50
"Number of negative links for each measured one, where none is named."
MOST_MEASURED = 100_000
"Most links of a split that are measured, where no number is named."


def hold_out_links(
    graph: Graph,
    *,
    train: float | None = None,
    val: float | None = None,
    negatives: int = NEGATIVES,
    most: int = MOST_MEASURED,
    seed: int,
    undirected: bool = True,
) -> Graph:
    """Keep a share of the edges to learn from, and hold the others out, to validate and to test on.

    Messages travel along the edges that are kept, and these are the links to learn from. Each link that is measured is ranked among drawn
    ones from the same source to other vertices that it has no edge to in the whole graph. They are the same in every epoch, and no two splits share
    one where a source has enough of them. The measured
    links of the split 'train' are some of the kept edges, at most as many as the larger of the other two splits has. A link whose source has
    edges to (nearly) all vertices is held out, but not measured: there is nothing to rank it among.

    Of a renumbered graph the same edges are held out. Other negative links are drawn for them, and of more links than ``most`` others are
    measured.

    Args:
        graph: any graph in the processor's memory; edge data are divided with the edges, and the edge data 'type' are the types of links.
        train: share of the edges to keep, in [0, 1], of those that are no self-loops; self-loops are kept. By default 0.85.
        val: share for validation, in [0, 1], by default 0.05; the rest is for testing. Where neither share is named and the graph has edge data
            'split', as published data may, that decides: 0 for the edges to keep, 1 for validation, 2 for testing.
        negatives: number of negative links for each measured one.
        most: most links of a split that are measured; where more are held out, some of them are drawn.
        seed: seed of the draws.
        undirected: hold ``v -> u`` out with ``u -> v``, which would give it away, and draw neither as a negative link where the graph has the
            other one. Edges between the same two vertices are held out together in any case.
    Returns:
        the graph with the kept edges, and with ``links``.
    Raises:
        InputError: shares that are negative or exceed 1 together, no edge that is kept or held out, no link that can be measured, or a graph on
            another device.
        LayerError: edges were overwritten.
    Example:
        >>> from sagann.graph import demo_graph
        >>> held = hold_out_links(demo_graph(), seed=0)
        >>> held.num_edges < demo_graph().num_edges, held.links.num_negatives, tuple(held.links.splits)
        (True, 50, ('train', 'val', 'test'))
    """
    require_type(
        graph, Graph, where="hold_out_links, graph", hint="Open it with sagann.load_graph, or make a sagann.Graph."
    )
    require_square(graph.topology, where="hold_out_links, graph.topology")
    require_integer(negatives, "drawn_negatives", where="hold_out_links, negatives")
    require_integer(most, "measured", where="hold_out_links, most")
    if graph.links is not None:
        raise refused(
            graph, "links are held out already", f"{graph.links.num_links} links", "Pass the whole graph."
        )
    parts = _parts(graph, train, val, seed=seed, undirected=undirected)
    proper = {name: proper_edges(part) for name, part in parts.items()}
    num_kept, *num_held_out = map(len, proper.values())
    if not num_kept or not sum(num_held_out):
        value = f"{num_kept} edges are kept, {sum(num_held_out)} held out, self-loops aside"
        raise refused(
            graph, "too few edges to hold some out", value, "Choose other shares, or a graph with more edges."
        )
    generator, most = generator_of(seed), min(most, max(num_held_out))
    measured = [(part, _drawn(proper[name], most, generator)) for name, part in parts.items()]
    src = torch.cat([part.indices[edges] for part, edges in measured]).long()
    dst = torch.cat([part.edge_dst()[edges] for part, edges in measured]).long()
    types = [of_part[edges] for part, edges in measured if (of_part := link_types(part)) is not None]
    numbers = torch.repeat_interleave(torch.tensor([len(edges) for _, edges in measured])).to(torch.uint8)
    destinations, failed = found_destinations(
        graph.topology, src, negatives, seed=seed, avoids=1 + undirected, parts=numbers
    )
    found = torch.ones(len(src), dtype=torch.bool).index_fill(0, failed, False)
    if not bool(found.any()):
        raise refused(
            graph,
            "no link can be measured",
            f"each of {len(src)} links comes from a vertex that is joined to (nearly) all others",
            "Take a graph with fewer edges.",
        )
    masks = {name: numbers[found] == number for number, name in enumerate(parts)}
    links = MeasuredLinks(
        src=src[found],
        dst=dst[found],
        types=torch.cat(types)[found] if types else None,
        negatives=destinations[found],
        undirected=undirected,
        splits={name: mask for name, mask in masks.items() if bool(mask.any())},
    )
    return replace(graph, topology=parts["train"], links=links)


def _parts(
    graph: Graph, train: float | None, val: float | None, *, seed: int, undirected: bool
) -> dict[str, Topology]:
    """The edges of each split: drawn, or where no share is named and the graph states a split, those of that."""
    whole, stated = graph.topology, graph.topology.edge_data.get(SPLIT_OF_EDGES)
    if stated is None or train is not None or val is not None:
        shares = {"train": LEARNED if train is None else train, "val": VALIDATED if val is None else val}
        drawn = edge_split(whole, **shares, seed=seed, undirected=undirected, ids=graph.original_ids)
        return {name: getattr(drawn, name) for name in SPLIT_NAMES}
    wrong = first_true((stated != 0) & (stated != 1) & (stated != 2)) if stated.ndim == 1 else 0
    if wrong is not None:
        raise InputError(
            f"split of an edge is not 0, 1 or 2: {stated[wrong].tolist()} of edge {wrong} (in edge data "
            f"'{SPLIT_OF_EDGES}' of graph '{graph.name}')",
            hint="Write 0 for edges to learn, 1 to validate, 2 to test on; or draw a split: train=0.85 (--split edges:0.85,0.05).",
        )
    return {name: keep_edges(whole, stated == number, with_ids=True) for number, name in enumerate(SPLIT_NAMES)}


def link_types(topology: Topology) -> Tensor | None:
    """The types of all edges, int64 [num_edges]; None where edges have none."""
    types = topology.edge_data.get("type")
    return None if types is None else types.long()


def proper_edges(topology: Topology) -> Tensor:
    """Numbers of the edges that are no self-loops, int64 ascending."""
    return (topology.indices != topology.edge_dst()).nonzero().squeeze(1)


def _drawn(edges: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """At most ``most`` of the edges, in order."""
    if len(edges) <= most:
        return edges
    return edges[torch.randperm(len(edges), generator=generator)[:most].sort().values]


class LearnedLinks:
    """Every edge of a topology is learned, self-loops aside, beside negative links that are drawn for it.

    ``topology`` is without the edges that a model has added. If ``undirected``, a link and its reverse are one: neither is a negative link. Unless
    ``keep_positives``, the edges between the ends of positive links are left out of the blocks of a mini-batch.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        negatives: int = 1,
        undirected: bool = True,
        keep_positives: bool = False,
        seed: int = 0,
    ) -> None:
        self.sampler = LinkSampler(topology, negatives=negatives, undirected=undirected, seed=seed)
        self.edges = proper_edges(topology)
        "Numbers of the edges to learn, int64 ascending."
        self._topology, self._types, self._keep_positives = topology, link_types(topology), keep_positives

    def ends_of(self, edges: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sources, destinations and types of some edges, int64 [n]; None for types where edges have none."""
        src, dst = self._topology.indices[edges].long(), self._topology.edge_dst()[edges].long()
        return src, dst, None if self._types is None else self._types[edges]

    def sample(self, edges: Tensor, own: slice, *, epoch: int, batch: int) -> Links:
        """Some of the edges of a batch as positive links, with their negative ones."""
        src, dst, types = self.ends_of(edges[own])
        return replace(self.sampler.sample(src, dst, epoch=epoch, batch=batch, first=own.start), types=types)

    def joined(self, batch: MiniBatch, links: Links, edges: Tensor) -> MiniBatch:
        """The mini-batch of links whose ends are its seeds, and which are all of a batch's ``edges`` or a share of them."""
        if self._keep_positives:
            return replace(batch, links=links)
        ends = None if links.num_positive == len(edges) else self.ends_of(edges)[:2]
        return batch.with_links(links, ends=ends, undirected=self.sampler.undirected)

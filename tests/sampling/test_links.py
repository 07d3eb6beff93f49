"""Links: negative ones are no edges, their ends are drawn evenly, and seeds hold every end once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from sagann.errors import InputError, LayerError
from sagann.graph import Topology
from sagann.graph.random_numbers import GOLDEN, key_of, mix, stream_of, unit
from sagann.sampling import LinkSampler, NeighborSampler, negative_destinations
from sagann.sampling.arguments import MEASURED_LINKS
from sagann.sampling.links import are_edges
from tests.graphs import odd_topologies, random_topology

TOPOLOGY = random_topology(40, 500)
SRC, DST = TOPOLOGY.indices[::5].long(), TOPOLOGY.edge_dst()[::5].long()
EDGES = set(zip(TOPOLOGY.indices.tolist(), TOPOLOGY.edge_dst().tolist(), strict=True))
UNJOINED = sorted(odd_topologies().keys() - {"multi-edges"})
"Odd topologies in which no vertex has an edge to all others."


def complete(num_vertices: int) -> Topology:
    src, dst = torch.cartesian_prod(torch.arange(num_vertices), torch.arange(num_vertices)).T
    return Topology.from_coo(src=src, dst=dst, num_src=num_vertices)


@pytest.mark.parametrize("negatives", [0, 1, 3])
@pytest.mark.parametrize("how", ["uniform", "structured"])
def test_negative_links_follow_positive_ones_and_are_no_edges(how: Any, negatives: int) -> None:
    links = LinkSampler(TOPOLOGY, how=how, negatives=negatives).sample(SRC, DST)
    count = len(SRC)
    src, dst = links.seeds[links.src], links.seeds[links.dst]
    assert src[:count].equal(SRC)
    assert dst[:count].equal(DST)
    assert links.labels.tolist() == [1.0] * count + [0.0] * count * negatives
    assert links.labels.dtype == torch.float32
    assert not EDGES & set(zip(src[count:].tolist(), dst[count:].tolist(), strict=True))
    if how == "structured":
        assert src[count:].equal(SRC.repeat_interleave(negatives))
    assert links.seeds.equal(torch.cat([src, dst]).unique())


@pytest.mark.parametrize("how", ["uniform", "structured"])
def test_a_complete_graph_has_no_negative_links(how: Any) -> None:
    with pytest.raises(InputError, match=r"no negative link found: 1000 links drawn.*positive link 0"):
        LinkSampler(complete(4), how=how, negatives=2).sample(torch.tensor([1, 2]), torch.tensor([0, 0]))


@pytest.mark.parametrize("name", UNJOINED)
@pytest.mark.parametrize("undirected", [False, True])
def test_edges_and_self_loops_of_odd_topologies_are_avoided(name: str, undirected: bool) -> None:
    topology = odd_topologies()[name]
    edges = set(zip(topology.indices.tolist(), topology.edge_dst().tolist(), strict=True))
    ends = torch.zeros(200, dtype=torch.int64)
    links = LinkSampler(topology, negatives=2, undirected=undirected).sample(ends, ends)
    src, dst = links.seeds[links.src][200:], links.seeds[links.dst][200:]
    assert bool((src != dst).all())
    assert not edges & set(zip(src.tolist(), dst.tolist(), strict=True))
    if undirected:
        assert not edges & set(zip(dst.tolist(), src.tolist(), strict=True))


@pytest.mark.parametrize("topology", [odd_topologies()["multi-edges"], complete(1)])
def test_vertices_that_are_all_joined_have_no_negative_links(topology: Topology) -> None:
    zero = torch.tensor([0])
    with pytest.raises(InputError, match="each of them an edge or a self-loop"):
        LinkSampler(topology).sample(zero, zero)


def shuffled(topology: Topology) -> Topology:
    order = torch.arange(topology.num_edges)
    for first, stop in pairwise(topology.indptr.tolist()):
        order[first:stop] = order[first:stop].flip(0)
    return Topology(
        indptr=topology.indptr,
        indices=topology.indices[order],
        num_src=topology.num_src,
        edge_data={name: rows[order] for name, rows in topology.edge_data.items()},
    )


@pytest.mark.parametrize("slab", [7, 1 << 20])
def test_in_edges_may_stand_in_any_order(monkeypatch: pytest.MonkeyPatch, slab: int) -> None:
    monkeypatch.setattr("sagann.graph.row_sort.SLAB_EDGES", slab)
    theirs = shuffled(TOPOLOGY)
    before = theirs.indices.clone()
    found, expected = (LinkSampler(each, negatives=50).sample(SRC, DST) for each in (theirs, TOPOLOGY))
    assert found.seeds.equal(expected.seeds)
    assert found.src.equal(expected.src)
    assert found.dst.equal(expected.dst)
    assert negative_destinations(theirs, SRC, 50).equal(negative_destinations(TOPOLOGY, SRC, 50))
    assert theirs.indices.equal(before)


@pytest.mark.parametrize("name", odd_topologies())
@pytest.mark.parametrize(("types", "changed"), [(0, shuffled), (3, lambda topology: topology)])
def test_edges_are_told_from_other_links_by_ends_and_type(name: str, types: int, changed: Any) -> None:
    topology = changed(odd_topologies(types=types)[name])
    src, dst, kinds = torch.cartesian_prod(*[torch.arange(topology.num_dst)] * 2, torch.arange(max(1, types))).T
    known = [topology.indices.tolist(), topology.edge_dst().tolist()]
    asked = [src.tolist(), dst.tolist()]
    if types:
        known.append(topology.edge_data["type"].tolist())
        asked.append(kinds.tolist())
    edges = set(zip(*known, strict=True))
    found = are_edges(topology, src, dst, kinds if types else None)
    assert found.tolist() == [each in edges for each in zip(*asked, strict=True)]


def test_every_pair_that_is_no_edge_is_equally_likely() -> None:
    links = LinkSampler(TOPOLOGY, negatives=2000).sample(SRC[:20], DST[:20])
    pairs = links.seeds[links.src][20:] * 40 + links.seeds[links.dst][20:]
    counts = torch.bincount(pairs, minlength=1600).numpy()
    free = np.ones(1600, dtype=bool)
    free[[src * 40 + dst for src, dst in EDGES]] = False
    free[np.arange(40) * 41] = False
    assert counts[~free].sum() == 0
    assert chisquare(counts[free]).pvalue > 1e-3


def test_draws_depend_on_seed_epoch_and_batch_alone() -> None:
    def drawn(seed: int, epoch: int, batch: int) -> tuple[int, ...]:
        links = LinkSampler(TOPOLOGY, seed=seed).sample(SRC, DST, epoch=epoch, batch=batch)
        return tuple(links.seeds[links.dst].tolist())

    numbers = range(3)
    assert len({drawn(seed, epoch, batch) for seed in numbers for epoch in numbers for batch in numbers}) == 27
    assert drawn(2, 1, 0) == drawn(2, 1, 0)
    none = LinkSampler(TOPOLOGY).sample(SRC[:0], DST[:0])
    assert (len(none.seeds), len(none.src), len(none.labels)) == (0, 0, 0)
    assert [ends.shape for ends in none.side_by_side()] == [(0, 1), (0, 1)]


def naive_destinations(
    topology: Topology, src: list[int], negatives: int, seed: int, *, undirected: bool
) -> list[list[int]]:
    """Draws of each link in plain Python, until one is neither an edge nor a self-loop."""
    edges = set(zip(topology.indices.tolist(), topology.edge_dst().tolist(), strict=True))
    found = []
    for number, source in enumerate(np.repeat(src, negatives).tolist()):
        state = int(stream_of(key_of(seed, MEASURED_LINKS), np.uint64(number)))
        while True:
            state = (state + int(GOLDEN)) % 2**64
            destination = int(unit(np.uint64(mix(np.uint64(state)))) * topology.num_dst)
            is_known = (source, destination) in edges or (undirected and (destination, source) in edges)
            if source != destination and not is_known:
                found.append(destination)
                break
    return np.reshape(found, (len(src), negatives)).tolist()


@pytest.mark.parametrize("name", UNJOINED)
@pytest.mark.parametrize("undirected", [True, False])
def test_negative_destinations_are_those_of_the_plain_twin(name: str, undirected: bool) -> None:
    topology = odd_topologies()[name]
    # The hub and the vertex that others point to are joined to all others where reverses count.
    src = torch.arange(1 if undirected else 0, topology.num_dst).repeat(3)
    found = negative_destinations(topology, src, 5, seed=2**62, undirected=undirected)
    assert found.dtype == torch.int64
    assert found.tolist() == naive_destinations(topology, src.tolist(), 5, 2**62, undirected=undirected)


def test_links_may_be_measured_slice_by_slice() -> None:
    whole = negative_destinations(TOPOLOGY, SRC, 7, seed=3)
    assert whole[11:30].equal(negative_destinations(TOPOLOGY, SRC[11:30], 7, seed=3, first=11))
    assert not whole.equal(negative_destinations(TOPOLOGY, SRC, 7, seed=4))
    assert negative_destinations(TOPOLOGY, SRC[:0], 7).shape == (0, 7)
    assert negative_destinations(TOPOLOGY, SRC, 0).shape == (len(SRC), 0)
    assert not whole[:19].equal(negative_destinations(TOPOLOGY, SRC[:19], 7, seed=3, first=11))


def test_negative_links_to_measure_by_are_not_those_that_were_trained_on() -> None:
    links = LinkSampler(TOPOLOGY, negatives=7, how="structured", seed=3).sample(SRC, DST)
    trained = links.seeds[links.dst][len(SRC) :].view(-1, 7)
    assert not trained.equal(negative_destinations(TOPOLOGY, SRC, 7, seed=3))


ZERO = torch.tensor([0])


@pytest.mark.parametrize(
    ("use", "named"),
    [
        (lambda: LinkSampler(None), "LinkSampler.topology"),
        (lambda: LinkSampler(TOPOLOGY, negatives=-1), "integer from 0 to 2^31 - 1 (in LinkSampler.negatives)"),
        (lambda: LinkSampler(TOPOLOGY, how="random"), "'random', expected one of uniform, structured"),
        (
            lambda: LinkSampler(TOPOLOGY).sample(ZERO + 40, ZERO),
            "40, but there are 40 vertices, numbered from 0 (in ",
        ),
        (lambda: LinkSampler(TOPOLOGY).sample(ZERO, ZERO - 1), "LinkSampler.sample, dst"),
        (lambda: LinkSampler(TOPOLOGY).sample(ZERO.repeat(2), ZERO), "2 and 1 (in LinkSampler.sample)"),
        (lambda: negative_destinations(None, SRC, 2), "negative_destinations, topology"),
        (lambda: negative_destinations(TOPOLOGY, ZERO + 40, 2), "negative_destinations, src, position 0"),
        (lambda: negative_destinations(TOPOLOGY, SRC, -1), "2^31 - 1 (in negative_destinations, negatives)"),
        (
            lambda: negative_destinations(complete(4), ZERO + 1, 2, first=8),
            "edge or a self-loop (in negative_destinations, link 8)",
        ),
    ],
)
def test_wrong_arguments_are_named(use: Callable[[], object], named: str) -> None:
    with pytest.raises(InputError) as error:
        use()
    assert named in str(error.value)


def test_edges_that_were_overwritten_are_refused() -> None:
    topology = random_topology(53, 401).mapped(torch.clone)
    sampler = LinkSampler(topology)
    topology.indices.zero_()
    for use in (lambda: sampler.sample(ZERO, ZERO), lambda: negative_destinations(topology, ZERO, 2)):
        with pytest.raises(LayerError, match="the edges of a topology were overwritten"):
            use()


def test_edge_data_that_learn_still_learn_in_blocks_without_the_links() -> None:
    weights = torch.ones(TOPOLOGY.num_edges, requires_grad=True)
    topology = TOPOLOGY.with_edge_data(weight=weights)
    links = LinkSampler(topology).sample(SRC, DST)
    (block,) = NeighborSampler(topology, [-1]).sample(links.seeds).with_links(links, undirected=False).blocks
    block.edge_data["weight"].sum().backward()
    left_out = set(zip(SRC.tolist(), DST.tolist(), strict=True))
    edges = zip(TOPOLOGY.indices.tolist(), TOPOLOGY.edge_dst().tolist(), strict=True)
    ends = set(links.seeds.tolist())
    assert weights.grad.tolist() == [edge[1] in ends and edge not in left_out for edge in edges]

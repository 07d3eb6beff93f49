"""Edge splits: the parts of the plain twin, nothing of one part to be read in another, the shares that were asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from sagann.errors import InputError, LayerError
from sagann.graph import EdgeSplit, Topology, edge_split, rmat_graph
from sagann.graph.random_numbers import GOLDEN, key_of
from sagann.graph.split_edges import EDGE_SPLIT
from tests.graph.graphs import edges_of, graphs
from tests.graphs import random_topology

NAMES = ("train", "val", "test")


def parts(split: EdgeSplit) -> dict[str, Topology]:
    return {name: getattr(split, name) for name in NAMES}


def mixed(word: int) -> int:
    """SplitMix64's hash, in Python's integers."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        word = (word ^ (word >> shift)) * factor % 2**64
    return word


def naive_parts(
    edges: list[tuple[int, int]], train: float, val: float, seed: int, undirected: bool
) -> dict[str, list[int]]:
    """Ids of the edges of each part: by sorting the hashes of the pairs of ends."""
    hashes = {}
    for edge, ends in enumerate(edges):
        first, second = sorted(ends) if undirected else ends
        if first != second:
            word = int(key_of(seed, EDGE_SPLIT))
            for end in (first, second):
                word = mixed((word + int(GOLDEN) * end) % 2**64)
            hashes[edge] = word >> 1
    ordered = [*sorted(hashes.values()), 2**64]
    cuts = [ordered[round(share * len(hashes))] for share in (train, train + val)]
    found: dict[str, list[int]] = {name: [] for name in NAMES}
    for edge in range(len(edges)):
        number = sum(hashes.get(edge, -1) >= cut for cut in cuts)
        found[NAMES[number]].append(edge)
    return found


@given(graphs(), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**63 - 1), st.booleans())
def test_parts_are_those_of_the_plain_twin(
    graph: Any, train: float, share: float, seed: int, undirected: bool
) -> None:
    topology, val = graph.topology, min((1 - train) * share, 1 - train)
    split = edge_split(topology, train=train, val=val, seed=seed, undirected=undirected)
    names = sorted(topology.edge_data)
    edges = edges_of(topology, *names)
    expected = naive_parts([edge[:2] for edge in edges], train, val, seed, undirected)
    for name, part in parts(split).items():
        part.validate()
        assert part.edge_ids.tolist() == expected[name]
        assert edges_of(part, *names) == [edges[edge] for edge in expected[name]]
        assert (part.num_src, part.num_dst) == (topology.num_src, topology.num_dst)
        assert part.indices.dtype == topology.indices.dtype
        for data in names:
            assert part.edge_data[data].dtype == topology.edge_data[data].dtype


def test_edges_are_drawn_evenly_and_by_seed() -> None:
    topology = rmat_graph(3000, 60_000, seed=0).topology
    first, again, other = (edge_split(topology, train=0.5, val=0.0, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.train.edge_ids, again.train.edge_ids)
    assert not torch.equal(first.train.edge_ids, other.train.edge_ids)
    # Of the edges of either half of the order, and of those that another seed draws, about half.
    drawn, drawn_by_other = (torch.zeros(topology.num_edges, dtype=torch.bool) for _ in range(2))
    drawn[first.train.edge_ids.long()] = True
    drawn_by_other[other.train.edge_ids.long()] = True
    for some in (slice(0, 30_000), slice(30_000, None), drawn_by_other):
        assert 0.45 < float(drawn[some].float().mean()) < 0.55


def test_a_split_does_not_depend_on_threads_widths_or_the_order_of_edges() -> None:
    topology = rmat_graph(2000, 40_000, seed=1).topology
    wide = Topology(indptr=topology.indptr, indices=topology.indices.long(), num_src=topology.num_src)
    given = edge_split(topology, seed=5)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        others = [edge_split(topology, seed=5), edge_split(wide, seed=5)]
    finally:
        torch.set_num_threads(before)
    for other in others:
        for name, part in parts(given).items():
            assert torch.equal(part.indptr, getattr(other, name).indptr)
            assert torch.equal(part.indices, getattr(other, name).indices.int())
    assert others[1].test.indices.dtype == torch.int64


def test_edges_that_were_overwritten_are_refused() -> None:
    topology = random_topology(53, 401)
    topology.indices.zero_()
    with pytest.raises(LayerError, match="the edges of a topology were overwritten"):
        edge_split(topology, seed=0)


@pytest.mark.parametrize(
    ("given_to", "message"),
    [
        ({"topology": None}, "edge_split, topology"),
        (
            {"train": 0.8, "val": 0.3},
            "train 0.8 and val 0.3, expected each at least 0, and a sum of at most 1 (in edge_split)",
        ),
        ({"train": float("nan")}, "train nan and val 0.05"),
        ({"seed": 0.5}, "edge_split, seed"),
        ({"undirected": 1}, "edge_split, undirected"),
    ],
)
def test_wrong_arguments_are_named(given_to: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        edge_split(**{"topology": random_topology(5, 10), "seed": 0, **given_to})
    assert message in str(error.value)

"""Splits of vertices, graphs and edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from sagann.errors import InputError, LayerError
from sagann.graph import EdgeSplit, Graph, Topology, edge_split, relabel, rmat_graph, validate_graph
from sagann.graph.random_numbers import GOLDEN, key_of
from sagann.graph.split import graph_split, per_class_split, planetoid_split, random_graph_split, random_split
from sagann.graph.split_edges import EDGE_SPLIT
from tests.graph.graphs import edges_of, graphs, make_graph
from tests.graphs import random_topology


def labelled(labels, **rest):
    labels = torch.as_tensor(labels)
    classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1 if len(labels) else 0
    return Graph(topology=make_graph([], len(labels)).topology, labels=labels, num_classes=classes, **rest)


def sizes(graph):
    return {name: int(mask.sum()) for name, mask in graph.splits.items()}


@given(st.lists(st.integers(-1, 2)), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_random_split_covers_the_labelled_vertices_once(labels, train, share, seed):
    graph = labelled(torch.tensor(labels, dtype=torch.int64))
    val = (1 - train) * share
    split = random_split(graph, train=train, val=min(val, 1 - train), seed=seed)
    covered = torch.stack([mask.long() for mask in split.splits.values()]).sum(0)
    assert torch.equal(covered, (graph.labels >= 0).long())
    split.splits["train"].any() and validate_graph(split)


def test_random_split_shares_and_seed():
    graph = labelled(torch.zeros(1000, dtype=torch.int64))
    first, again, other = (random_split(graph, train=0.5, val=np.float32(0.3), seed=seed) for seed in (1, 1, 2))
    assert sizes(first) == {"train": 500, "val": 300, "test": 200}
    assert torch.equal(first.splits["train"], again.splits["train"])
    assert not torch.equal(first.splits["train"], other.splits["train"])
    # Of 500 drawn from 1000, about half lie in the first half: drawn at random, not cut off.
    assert 200 < first.splits["train"][:500].sum() < 300


def test_a_renumbered_graph_is_split_like_the_original_one():
    graph = labelled(torch.arange(90) % 4 - 1)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    for split in (
        random_split,
        partial(per_class_split, train=3, val=4),
        partial(planetoid_split, train=3, val=9, test=9),
    ):
        given, renumbered = split(graph, seed=5), split(relabel(graph, order), seed=5)
        for name, mask in given.splits.items():
            assert torch.equal(renumbered.splits[name], mask[order])


def test_per_class_split_draws_the_same_number_of_every_class():
    graph = labelled(torch.tensor([0, 1, -1] * 10))
    split = per_class_split(graph, train=2, val=3, seed=0)
    for label in range(2):
        members = graph.labels == label
        assert {name: int((mask & members).sum()) for name, mask in split.splits.items()} == {
            "train": 2,
            "val": 3,
            "test": 5,
        }
    assert not (sum(split.splits.values()) > 0)[graph.labels < 0].any()
    validate_graph(split)


def several():
    return labelled(
        torch.tensor([0, -1, 1, 0, 1]), graph_ptr=torch.tensor([0, 2, 4, 5]), graph_names=("DE", "FR", "RU")
    )


def test_whole_graphs_are_drawn_once():
    labels = torch.tensor([0, 1, -1, 1, 0, 1, 1, 0, -1, 0, 1, 1])
    graph = replace(unlabelled(), graph_ptr=torch.tensor([0] * 12 + [2]), graph_labels=labels, num_graph_classes=2)
    splits = random_graph_split(graph, train=0.5, val=0.3, seed=1).graph_splits
    assert {name: int(mask.sum()) for name, mask in splits.items()} == {"train": 5, "val": 3, "test": 2}
    assert torch.equal(splits["train"] | splits["val"] | splits["test"], labels >= 0)
    validate_graph(replace(graph, graph_splits=splits))
    again = random_graph_split(graph, train=0.5, val=0.3, seed=1).graph_splits
    assert all(torch.equal(again[name], mask) for name, mask in splits.items())
    assert not torch.equal(random_graph_split(graph, train=0.5, seed=2).graph_splits["train"], splits["train"])
    # Graphs with targets are all drawn.
    with_targets = random_graph_split(replace(graph, graph_targets=torch.zeros(12)), train=1.0, val=0.0, seed=0)
    assert with_targets.graph_splits["train"].all()


def test_graph_split_by_name_and_by_position():
    split = graph_split(several(), train=["DE"], test=[2])
    assert split.splits["train"].tolist() == [True, False, False, False, False]
    assert split.splits["val"].sum() == 0
    assert split.splits["test"].tolist() == [False, False, False, False, True]


def unlabelled():
    return Graph(topology=make_graph([], 2).topology, name="bare")


WITH_TARGETS = replace(unlabelled(), graph_ptr=torch.tensor([0, 2]), graph_targets=torch.zeros(1))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            lambda: random_split(labelled([0, 1]), train=0.8, val=0.3, seed=0),
            r"train 0\.8 and val 0\.3, .*random_split\)",
        ),
        (
            lambda: random_split(WITH_TARGETS, seed=0),
            r"1 target per graph \(in graph 'bare'\). Use random_graph_split",
        ),
        (lambda: random_graph_split(unlabelled(), seed=0), r"graphs without answers .* neither labels nor targets"),
        (
            lambda: per_class_split(labelled([0, 0, 1]), train=1, val=1, seed=0),
            r"1 labelled vertices, train 1 and val 1 are needed \(in class 1 of graph 'graph'\)",
        ),
        (
            lambda: planetoid_split(labelled([0, 0, 1, 1]), train=1, val=1, test=2, seed=0),
            r"2 are left after training, but val 1 and test 2 are needed",
        ),
        (lambda: graph_split(labelled([0, 1]), train=[0]), r"cannot be split by graphs: no graph_ptr"),
        (lambda: graph_split(several(), train=["DE", "ES"]), r"unknown graph: 'ES', known are DE, FR, RU"),
        (lambda: graph_split(several(), train=[["DE"]]), r"unknown graph: \['DE'\], known are DE, FR, RU"),
        (
            lambda: graph_split(several(), train=["DE"], test=[0]),
            r"stands twice in a split: 0 .*Name every graph once",
        ),
    ],
)
def test_impossible_splits_are_refused(split, message):
    with pytest.raises(InputError, match=message):
        split()


def test_planetoid_split_takes_the_numbers_asked_for():
    graph = labelled(torch.arange(400) % 4 - 1)
    split = planetoid_split(graph, train=5, val=30, test=50, seed=0)
    validate_graph(split)
    assert sizes(split) == {"train": 15, "val": 30, "test": 50}
    assert torch.bincount(split.labels[split.splits["train"]]).tolist() == [5, 5, 5]
    # Validation is not all of one class, as it would be if the rest were taken in order.
    assert len(split.labels[split.splits["val"]].unique()) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_splits_on_the_gpu_are_those_of_the_cpu():
    graph = labelled(torch.tensor([0, 1, -1] * 10), graph_ptr=torch.tensor([0, 9, 18, 30]))
    draws = [
        lambda graph: random_split(graph, seed=0),
        lambda graph: per_class_split(graph, train=2, val=3, seed=0),
        lambda graph: planetoid_split(graph, train=2, val=3, test=4, seed=0),
        lambda graph: graph_split(graph, train=[0], val=[1], test=[2]),
    ]
    for draw in draws:
        there = draw(graph.to("cuda"))
        for name, mask in draw(graph).splits.items():
            assert there.splits[name].device.type == "cuda"
            assert torch.equal(there.splits[name].cpu(), mask)


def test_every_vertex_with_targets_is_drawn():
    graph = replace(labelled(torch.empty(0).long()), topology=make_graph([], 10).topology, labels=None)
    split = random_split(replace(graph, targets=torch.zeros(10, 2)), train=0.5, val=0.3, seed=0)
    assert sizes(split) == {"train": 5, "val": 3, "test": 2}
    # Labels are of the same vertices: they alone decide.
    labels = torch.tensor([0] * 4 + [-1] * 6)
    both = replace(graph, targets=torch.zeros(10), labels=labels, num_classes=1)
    assert sum(sizes(random_split(both, seed=0)).values()) == 4
    with pytest.raises(InputError, match="a split per class needs one label per vertex: targets, and no labels"):
        per_class_split(replace(graph, targets=torch.zeros(10)), seed=0)
    with pytest.raises(InputError, match=r"neither labels nor targets .*Give the graph labels or targets first"):
        random_split(graph, seed=0)


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


def test_a_split_does_not_depend_on_threads_widths_or_the_order_of_edges(threads: Callable[[int], None]) -> None:
    topology = rmat_graph(2000, 40_000, seed=1).topology
    wide = Topology(indptr=topology.indptr, indices=topology.indices.long(), num_src=topology.num_src)
    given = edge_split(topology, seed=5)
    threads(2)
    others = [edge_split(topology, seed=5), edge_split(wide, seed=5)]
    for other in others:
        for name, part in parts(given).items():
            assert torch.equal(part.indptr, getattr(other, name).indptr)
            assert torch.equal(part.indices, getattr(other, name).indices.int())
    assert others[1].test.indices.dtype == torch.int64


def test_sources_that_are_no_destinations_are_drawn_by_their_ids() -> None:
    ends = {"src": torch.arange(2, 2002), "dst": torch.arange(2000) % 2, "num_src": 2002}
    square, bipartite = (edge_split(Topology.from_coo(**ends, num_dst=n), seed=0) for n in (2002, 2))
    assert torch.equal(bipartite.train.indices, square.train.indices)


def test_edges_that_were_overwritten_are_refused() -> None:
    topology = random_topology(53, 401)
    topology.indices.zero_()
    with pytest.raises(LayerError, match="the edges of a topology were overwritten"):
        edge_split(topology, seed=0)


@pytest.mark.parametrize(
    ("given_to", "message"),
    [
        ({"topology": None}, "edge_split, topology"),
        ({"train": 0.8, "val": 0.3}, r"train 0\.8 and val 0\.3, .* a sum of at most 1 \(in edge_split\)"),
        ({"train": float("nan")}, r"train nan and val 0\.05"),
    ],
)
def test_wrong_arguments_are_named(given_to: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        edge_split(**{"topology": random_topology(5, 10), "seed": 0, **given_to})

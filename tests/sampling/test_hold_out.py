"""Links are held out of a graph: no message tells of them, and negative links are no edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph, MeasuredLinks, Topology, relabel, sbm_graph, subgraph, validate_graph
from sagann.sampling import hold_out_links
from sagann.storage import save_graph
from tests.graphs import labelled_graph


def communities(num_vertices: int = 400) -> Graph:
    return sbm_graph(
        num_vertices, num_classes=8, average_degree=12, homophily=0.9, num_features=16, feature_noise=0.2, seed=0
    )


def pairs_of(src: Tensor, dst: Tensor) -> set[tuple[int, int]]:
    return set(zip(src.tolist(), dst.tolist(), strict=True))


def edges_of(topology: Topology) -> set[tuple[int, int]]:
    return pairs_of(topology.indices, topology.edge_dst())


def test_every_edge_is_kept_or_held_out_and_its_reverse_with_it() -> None:
    graph = communities()
    held = hold_out_links(graph, seed=3)
    kept, links = edges_of(held.topology), held.links
    parts = {name: pairs_of(links.src[mask], links.dst[mask]) for name, mask in links.splits.items()}
    assert kept | parts["val"] | parts["test"] == edges_of(graph.topology)
    assert not kept & (parts["val"] | parts["test"])
    assert not parts["val"] & parts["test"]
    assert not {(dst, src) for src, dst in parts["val"] | parts["test"]} & kept
    assert parts["train"] <= kept
    assert len(parts["val"]) == pytest.approx(0.05 * graph.num_edges, rel=0.05)
    assert len(parts["test"]) == pytest.approx(0.10 * graph.num_edges, rel=0.05)
    assert 0.9 * len(parts["test"]) <= len(parts["train"]) <= len(parts["test"])
    validate_graph(held)


def test_reverses_of_edges_are_no_false_links_where_they_are_the_same_link() -> None:
    path = Topology.from_coo(src=torch.tensor([0, 1, 2]), dst=torch.tensor([1, 2, 3]), num_src=4)
    known = {frozenset(pair) for pair in edges_of(path)}
    num_reversed = dict.fromkeys((True, False), 0)
    for seed in range(20):
        for undirected in num_reversed:
            options = {"train": 0.34, "val": 0.33, "negatives": 1, "undirected": undirected}
            links = hold_out_links(Graph(topology=path), seed=seed, **options).links
            false = pairs_of(links.src, links.negatives[:, 0])
            assert not false & edges_of(path)
            num_reversed[undirected] += len(known & {frozenset(pair) for pair in false})
    assert num_reversed[True] == 0 < num_reversed[False]


@pytest.mark.parametrize("undirected", [True, False])
def test_no_two_splits_share_a_false_link_and_none_is_an_edge(undirected: bool) -> None:
    graph = communities(100)
    for seed in range(3):
        links = hold_out_links(graph, negatives=20, seed=seed, undirected=undirected).links
        false = [
            {
                (min(pair), max(pair)) if undirected else pair
                for pair in pairs_of(links.src[mask].repeat_interleave(20), links.negatives[mask].flatten())
            }
            for mask in links.splits.values()
        ]
        assert all(false)
        assert len(set.union(*false)) == sum(map(len, false))
        assert not set.union(*false) & edges_of(graph.topology)
        assert not any(src == dst for src, dst in set.union(*false))


def with_split(graph: Graph, *, dtype: torch.dtype = torch.int32) -> Graph:
    """A graph that states which edges are learned, validate and test; those between two vertices alike."""
    src, dst = graph.topology.indices.long(), graph.topology.edge_dst().long()
    split = ((src + dst) % 7 - 4).clamp(min=0)
    return graph.with_topology(graph.topology.with_edge_data(split=split.to(dtype)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_split_that_the_data_state_is_used(dtype: torch.dtype) -> None:
    graph = with_split(communities(), dtype=dtype)
    edges = graph.topology
    held = hold_out_links(graph, seed=0)
    links = held.links
    for number, (name, mask) in enumerate(links.splits.items()):
        stated = edges.edge_data["split"] == number
        expected = pairs_of(edges.indices[stated], edges.edge_dst()[stated])
        if name == "train":
            assert edges_of(held.topology) == expected
        else:
            assert pairs_of(links.src[mask], links.dst[mask]) == expected
    # Negative links are no edges of any part, and named shares draw a split instead.
    assert not pairs_of(links.src.repeat_interleave(50), links.negatives.flatten()) & edges_of(edges)
    drawn, without = (hold_out_links(each, train=0.85, seed=0) for each in (graph, communities()))
    assert edges_of(drawn.topology) == edges_of(without.topology)
    validate_graph(held)


@pytest.mark.parametrize(
    ("split", "value"), [(torch.arange(4), "3 of edge 3"), (torch.zeros(4, 3), r"\[0.0, 0.0, 0.0\] of edge 0")]
)
def test_another_split_that_the_data_state_is_refused(split: Tensor, value: str) -> None:
    ends = torch.arange(4)
    topology = Topology.from_coo(src=ends, dst=ends + 1, num_src=5, edge_data={"split": split})
    with pytest.raises(InputError, match=f"split of an edge is not 0, 1 or 2: {value}.*edge data 'split' of graph"):
        hold_out_links(Graph(topology=topology), seed=0)


def test_the_same_seed_holds_the_same_out() -> None:
    first, second, other = (hold_out_links(communities(), seed=seed).links for seed in (5, 5, 6))
    for (name, ours), (_, theirs) in zip(first.arrays(), second.arrays(), strict=True):
        assert torch.equal(ours, theirs), name
    assert not torch.equal(first.src, other.src)


def test_of_a_renumbered_graph_the_same_edges_are_held_out() -> None:
    graph = communities()
    order = torch.randperm(graph.num_vertices, generator=torch.Generator().manual_seed(1))
    found = []
    for each in (graph, relabel(graph, order)):
        links = hold_out_links(each, seed=2).links
        ids = torch.arange(graph.num_vertices) if each.original_ids is None else each.original_ids
        found.append(
            {split: pairs_of(ids[links.src[mask]], ids[links.dst[mask]]) for split, mask in links.splits.items()}
        )
    for split in ("val", "test"):
        assert found[0][split] == found[1][split]


def test_no_more_links_are_measured_than_are_asked_for() -> None:
    links = hold_out_links(communities(), most=40, seed=0).links
    assert {name: int(mask.sum()) for name, mask in links.splits.items()} == {"train": 40, "val": 40, "test": 40}


def test_self_loops_are_kept_and_not_measured() -> None:
    proper = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 8]]).T
    loops = torch.arange(400)
    src, dst = torch.cat([proper[0], loops]), torch.cat([proper[1], loops])
    graph = Graph(topology=Topology.from_coo(src=src, dst=dst, num_src=400))
    held = hold_out_links(graph, train=0.5, val=0.25, seed=0)
    assert not bool((held.links.src == held.links.dst).any())
    assert {name: int(mask.sum()) for name, mask in held.links.splits.items()} == {"train": 2, "val": 2, "test": 2}
    assert held.num_edges == 404


def joined_to_all(num_vertices: int = 400) -> Graph:
    """Communities, and the vertex 0 joined to all others, in both directions."""
    topology, others = communities(num_vertices).topology, torch.arange(1, num_vertices)
    zeros = torch.zeros_like(others)
    src = torch.cat([topology.indices.long(), others, zeros])
    dst = torch.cat([topology.edge_dst().long(), zeros, others])
    return Graph(topology=Topology.from_coo(src=src, dst=dst, num_src=num_vertices))


def test_links_from_a_vertex_that_is_joined_to_all_others_are_held_out_and_not_measured() -> None:
    graph = joined_to_all()
    held = hold_out_links(graph, seed=0, negatives=7)
    links = held.links
    assert not bool((links.src == 0).any())
    assert bool((links.dst == 0).any())
    assert not bool((links.src.unsqueeze(1) == links.negatives).any())
    held_out = edges_of(graph.topology) - edges_of(held.topology)
    assert any(src == 0 for src, _ in held_out)
    measured = pairs_of(links.src, links.dst)
    assert {pair for pair in held_out if pair[0]} <= measured
    # The others are ranked among the links that they would be ranked among without it.
    again = hold_out_links(graph, seed=0, negatives=7).links
    assert again.negatives.equal(links.negatives)
    validate_graph(held)


def test_a_graph_of_all_edges_has_no_links_to_measure() -> None:
    src, dst = torch.cartesian_prod(torch.arange(9), torch.arange(9)).T
    graph = Graph(topology=Topology.from_coo(src=src, dst=dst, num_src=9))
    with pytest.raises(InputError, match=r"no link can be measured.*joined to \(nearly\) all.*graph 'graph'"):
        hold_out_links(graph, train=0.5, val=0.2, seed=0)


def test_a_graph_on_another_device_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"edges are not in the processor's memory: .* 'meta' \(in hold_out_links, g"
    ):
        hold_out_links(communities().to("meta"), seed=0)


def test_types_of_edges_are_those_of_links() -> None:
    graph = labelled_graph(types=3)
    held = hold_out_links(graph, train=0.5, val=0.2, negatives=2, seed=0)
    known: dict[tuple[int, int], set[int]] = {}
    for src, dst, kind in zip(
        graph.topology.indices.tolist(),
        graph.topology.edge_dst().tolist(),
        graph.topology.edge_data["type"].tolist(),
        strict=True,
    ):
        known.setdefault((src, dst), set()).add(kind)
    for src, dst, kind in zip(
        held.links.src.tolist(), held.links.dst.tolist(), held.links.types.tolist(), strict=True
    ):
        assert kind in known[src, dst]
    validate_graph(held)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 1.0, "val": 0.0}, "too few edges to hold some out.*0 held out"),
        ({"train": 0.0, "val": 0.5}, "too few edges to hold some out.*0 edges are kept"),
        ({"train": 0.9, "val": 0.2}, "train"),
        ({"negatives": 0}, "negatives"),
        ({"most": 0}, "most"),
        ({"train": float("nan")}, "train"),
    ],
)
def test_shares_that_leave_nothing_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hold_out_links(communities(), seed=0, **options)


def test_what_would_lose_the_links_is_refused(tmp_path: str) -> None:
    held = hold_out_links(communities(), seed=0)
    for use in (
        lambda: subgraph(held, torch.arange(10)),
        lambda: save_graph(held, tmp_path),
        lambda: hold_out_links(held, seed=0),
    ):
        with pytest.raises(InputError, match="links are held out"):
            use()


ONE = torch.tensor([0])


@pytest.mark.parametrize(
    ("changes", "types", "message"),
    [
        ({"src": ONE.int()}, 0, "MeasuredLinks.src"),
        ({"dst": torch.tensor([0, 1])}, 0, "MeasuredLinks.dst"),
        ({"negatives": torch.zeros(1, 0, dtype=torch.int64)}, 0, "at least one of them"),
        ({"splits": {"val": torch.tensor([1])}}, 0, "torch.bool"),
        ({"splits": {"val": torch.tensor([True, False])}}, 0, "2 rows, 1 links"),
        ({"src": torch.tensor([53])}, 0, r"vertex id out of range.*53.*src of links"),
        ({"negatives": torch.tensor([[0, -1]])}, 0, r"vertex id out of range.*-1.*negatives of links"),
        ({"types": torch.tensor([0])}, 0, "types of links, 0 types of edges"),
        ({}, 3, "no types of links, 3 types of edges"),
        ({"types": torch.tensor([3])}, 3, "type"),
        ({"splits": {"validation": torch.tensor([True])}}, 0, r"unknown split.*links\.splits of graph"),
        (
            {"splits": {"train": torch.tensor([False])}},
            0,
            r"training split is empty: 0 links.*links\.split 'train' of graph.*with sagann.sampling.hold_out_links",
        ),
        (
            {"splits": {"val": torch.tensor([True]), "test": torch.tensor([True])}},
            0,
            r"splits overlap.*link 0.*links\.splits of graph",
        ),
    ],
)
def test_wrong_values_of_links_are_found(changes: dict[str, object], types: int, message: str) -> None:
    def checked() -> None:
        links = MeasuredLinks(**{"src": ONE, "dst": ONE, "negatives": ONE.unsqueeze(1), **changes})
        topology = labelled_graph(types=types).topology
        validate_graph(Graph(topology=topology, links=links, num_edge_types=types))

    with pytest.raises(InputError, match=message):
        checked()

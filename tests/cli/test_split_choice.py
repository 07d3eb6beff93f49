from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.cli.split_choice import apply_split
from sagann.errors import InputError
from sagann.graph import Graph, Topology


@pytest.fixture
def graph() -> Graph:
    topology = Topology(indptr=torch.zeros(41, dtype=torch.int64), indices=torch.zeros(0).int(), num_src=40)
    return Graph(
        topology=topology,
        labels=torch.arange(40) % 2,
        num_classes=2,
        splits={"train": torch.ones(40, dtype=torch.bool)},
        graph_ptr=torch.tensor([0, 10, 20, 40]),
        graph_names=("a", "b", "1"),
    )


def sizes(graph: Graph) -> list[int]:
    return [int(graph.splits[name].sum()) for name in ("train", "val", "test")]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("random:0.5,0.25", [20, 10, 10]),
        ("per-class:3,4", [6, 8, 26]),
        ("planetoid:3,4,5", [6, 4, 5]),
        ("graphs:a/b/2", [10, 10, 20]),
        # A name goes before a position: graph '1' is the third.
        ("graphs:0/1/b", [10, 20, 10]),
        ("graphs:a,b/1/", [20, 20, 0]),
    ],
)
def test_splits_as_asked(graph: Graph, choice: str, expected: list[int]) -> None:
    assert sizes(apply_split(graph, choice, seed=0)) == expected


def test_the_seed_decides(graph: Graph) -> None:
    first, again, other = (apply_split(graph, "random:0.5,0.2", seed=seed).splits["train"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "choice",
    [
        "",
        "random",
        "random:",
        "random:0.5",
        "random:a,b",
        "random:0.1,0.1,0.1",
        "per-class:1.5,2",
        "per-class:-1,2",
        "planetoid:1,2",
        "planetoid:1,2,-3",
        "graphs:a/b",
        "graphs:a",
        "halves:1,2",
        "x" * 500,
    ],
)
def test_what_is_not_understood(graph: Graph, choice: str) -> None:
    with pytest.raises(InputError, match=r"split is not understood: '.{0,80}' \(in --split\)"):
        apply_split(graph, choice, seed=0)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("random:0.9,0.2", "shares of a split do not fit"),
        ("random:nan,0.2", "shares of a split do not fit"),
        ("random:-1,0.2", "shares of a split do not fit"),
        ("per-class:100,1", "too few vertices"),
        ("planetoid:3,4,500", "too few labelled vertices"),
        ("graphs:a/b/zz", "unknown graph: 'zz'"),
        ("graphs:a/b/7", "unknown graph: 7"),
        ("graphs:a/a/1", "stands twice"),
        (f"graphs:{'9' * 30}/b/1", "unknown graph"),
    ],
)
def test_what_does_not_fit_the_graph(graph: Graph, choice: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply_split(graph, choice, seed=0)


def test_a_single_graph_is_not_split_by_graphs(graph: Graph) -> None:
    with pytest.raises(InputError, match="a single graph cannot be split by graphs"):
        apply_split(replace(graph, graph_ptr=None, graph_names=()), "graphs:0/1/2", seed=0)

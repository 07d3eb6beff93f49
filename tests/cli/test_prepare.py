from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sagann.cli.prepare import apply_split, open_checked, training_graph
from sagann.config import DataConfig
from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.storage import save_graph


@pytest.fixture
def ring() -> Graph:
    src = torch.arange(10)
    topology = Topology.from_coo(
        src=src, dst=(src + 1) % 10, num_src=10, edge_data={"type": torch.zeros(10, dtype=torch.int64)}
    )
    features = torch.tensor([[1.0, 3.0]]).repeat(10, 1)
    return Graph(topology=topology, features=features, labels=src % 2, num_classes=2, num_edge_types=1)


def opened(graph: Graph, tmp_path: Path, **options: bool) -> Graph:
    save_graph(graph, tmp_path / "ring")
    return open_checked(DataConfig(data=str(tmp_path / "ring"), **options), keep_splits=True)


@pytest.mark.parametrize(
    ("options", "num_edges", "num_edge_types", "row"),
    [
        ((), 10, 1, [1.0, 3.0]),
        (("undirected",), 20, 1, [1.0, 3.0]),
        (("inverse_edges",), 20, 2, [1.0, 3.0]),
        (("normalise_features",), 10, 1, [0.25, 0.75]),
    ],
)
def test_a_graph_is_changed_as_asked(
    ring: Graph, tmp_path: Path, options: tuple[str, ...], num_edges: int, num_edge_types: int, row: list[float]
) -> None:
    graph = opened(ring, tmp_path, **dict.fromkeys(options, True))
    assert (graph.num_edges, graph.num_edge_types) == (num_edges, num_edge_types)
    assert graph.features[0].tolist() == row


def test_a_split_is_told_once(ring: Graph, tmp_path: Path) -> None:
    save_graph(ring, tmp_path / "ring")
    said: list[str] = []
    config = DataConfig(data=str(tmp_path / "ring"))
    graph = training_graph(config, task=None, seed=3, say=said.append)
    assert {name: int(mask.sum()) for name, mask in graph.splits.items()} == {"train": 6, "val": 2, "test": 2}
    assert said == [
        "The dataset has no splits: 60 % of the labelled vertices train, 20 % validate, 20 % test (seed 3)."
    ]
    said.clear()
    training_graph(replace(config, split="random:0.5,0.5"), task=None, seed=3, say=said.append)
    assert said == []


def test_a_split_that_is_asked_for_replaces_a_bad_one(ring: Graph, tmp_path: Path) -> None:
    everything = torch.ones(10, dtype=torch.bool)
    save_graph(replace(ring, splits={"train": everything, "test": everything}), tmp_path / "ring")
    config = DataConfig(data=str(tmp_path / "ring"))
    with pytest.raises(InputError, match="splits overlap"):
        training_graph(config, task=None, seed=0, say=lambda text: None)
    training_graph(replace(config, split="per-class:2,1"), task=None, seed=0, say=lambda text: None)


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


@pytest.mark.parametrize("choice", ["random:0.5,0.2", "per-class:3,4", "planetoid:3,5,6"])
def test_the_seed_decides(graph: Graph, choice: str) -> None:
    first, again, other = (apply_split(graph, choice, seed=seed).splits["train"] for seed in (0, 0, 1))
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
        ("random:nan,0.2", "shares of a split do not fit"),
        (f"planetoid:1,1,{'9' * 30}", "split is out of range: test is"),
        (f"per-class:1,{2**64}", "split is out of range: val is 18446744073709551616"),
        (f"graphs:{'9' * 30}/b/1", "unknown graph"),
    ],
)
def test_numbers_that_no_split_has(graph: Graph, choice: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply_split(graph, choice, seed=0)


def test_values_that_another_worker_checks_are_not_checked(ring: Graph, tmp_path: Path) -> None:
    features = ring.features.clone()
    features[3, 0] = float("nan")
    save_graph(replace(ring, features=features), tmp_path / "ring")
    config = DataConfig(data=str(tmp_path / "ring"))
    with pytest.raises(InputError, match="NaN"):
        open_checked(config, keep_splits=True)
    assert open_checked(config, keep_splits=True, check=False).num_vertices == 10

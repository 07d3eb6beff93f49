from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sagann.cli.prepare import open_checked, stored_class_names, training_graph
from sagann.cli.run_settings import DataConfig
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


def test_as_it_is(ring: Graph, tmp_path: Path) -> None:
    graph = opened(ring, tmp_path)
    assert graph.num_edges == 10
    assert graph.features is not None
    assert graph.features[0].tolist() == [1.0, 3.0]


def test_undirected(ring: Graph, tmp_path: Path) -> None:
    assert opened(ring, tmp_path, undirected=True).num_edges == 20


def test_inverse_edges(ring: Graph, tmp_path: Path) -> None:
    graph = opened(ring, tmp_path, inverse_edges=True)
    assert (graph.num_edges, graph.num_edge_types) == (20, 2)


def test_normalised_features(ring: Graph, tmp_path: Path) -> None:
    graph = opened(ring, tmp_path, normalise_features=True)
    assert graph.features is not None
    assert graph.features[0].tolist() == [0.25, 0.75]


def test_normalising_without_features(ring: Graph, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no features to normalise"):
        opened(replace(ring, features=None), tmp_path, normalise_features=True)


def test_a_split_is_told_once(ring: Graph, tmp_path: Path) -> None:
    save_graph(ring, tmp_path / "ring")
    said: list[str] = []
    config = DataConfig(data=str(tmp_path / "ring"))
    graph = training_graph(config, seed=3, say=said.append)
    assert {name: int(mask.sum()) for name, mask in graph.splits.items()} == {"train": 6, "val": 2, "test": 2}
    assert said == [
        "The dataset has no splits: 60 % of the labelled vertices train, 20 % validate, 20 % test (seed 3)."
    ]
    said.clear()
    training_graph(replace(config, split="random:0.5,0.5"), seed=3, say=said.append)
    assert said == []


def test_a_split_that_is_asked_for_replaces_a_bad_one(ring: Graph, tmp_path: Path) -> None:
    everything = torch.ones(10, dtype=torch.bool)
    save_graph(replace(ring, splits={"train": everything, "test": everything}), tmp_path / "ring")
    config = DataConfig(data=str(tmp_path / "ring"))
    with pytest.raises(InputError, match="splits overlap"):
        training_graph(config, seed=0, say=lambda text: None)
    training_graph(replace(config, split="per-class:2,1"), seed=0, say=lambda text: None)


def test_class_names_that_do_not_fit_are_left_out(ring: Graph, tmp_path: Path) -> None:
    assert stored_class_names("demo", 3) == ()
    assert stored_class_names("gone", 3) == ()
    save_graph(ring, tmp_path / "ring")
    assert stored_class_names(str(tmp_path / "ring"), 2) == ()
    np.savez(tmp_path / "n.npz", edge_index=np.zeros((2, 0), dtype=np.int64), labels=np.array([0, 1]))
    (tmp_path / "n.json").write_text(json.dumps({"class_names": ["cat", "dog"]}))
    assert stored_class_names(str(tmp_path / "n.npz"), 2) == ("cat", "dog")
    assert stored_class_names(str(tmp_path / "n.npz"), 3) == ()

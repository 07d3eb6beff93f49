from __future__ import annotations

import gc
from pathlib import Path

import torch

from sagann.storage import array_map, open_graph, save_graph
from sagann.storage.array_map import maps_of
from tests.storage.conftest import make_graph


def known_in(folder: Path) -> list[str]:
    return [each.path.name for each in array_map._MAPS.values() if each.path.is_relative_to(folder)]


def test_arrays_are_known_while_they_live(tmp_path: Path) -> None:
    save_graph(make_graph(), tmp_path / "g")
    graph = open_graph(tmp_path / "g")
    assert isinstance(graph.features, torch.Tensor)
    found = maps_of([graph.features, graph.topology.indices[2:], graph.features[1:], torch.zeros(3)])
    assert [each.path.name for each in found] == ["features.npy", "indices.npy"]
    features = graph.features[3:]
    del graph, found
    gc.collect()
    assert known_in(tmp_path) == ["features.npy"]
    del features
    gc.collect()
    assert known_in(tmp_path) == []

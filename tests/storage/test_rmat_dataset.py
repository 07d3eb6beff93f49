"""R-MAT straight to disk equals R-MAT in memory."""

from __future__ import annotations

from pathlib import Path

import torch

from sagann.graph.rmat import rmat_graph
from sagann.storage import ImportOptions, check_dataset, open_graph, write_rmat
from tests.storage.conftest import assert_same_graph


def test_edges_are_those_of_the_graph_in_memory(tmp_path: Path) -> None:
    options = ImportOptions(memory_bytes=2**20)
    write_rmat(tmp_path / "r", 5000, 200_000, seed=3, num_features=4, num_classes=5, options=options)
    check_dataset(tmp_path / "r")
    found, expected = open_graph(tmp_path / "r"), rmat_graph(5000, 200_000, seed=3)
    assert torch.equal(found.topology.indptr, expected.topology.indptr)
    assert torch.equal(found.topology.indices, expected.topology.indices)


def test_vertices_do_not_depend_on_memory_but_on_the_seed(tmp_path: Path) -> None:
    for name, seed, memory_bytes in (("a", 1, 2**20), ("b", 1, 2**26), ("c", 2, 2**20)):
        options = ImportOptions(memory_bytes=memory_bytes, name="rmat")
        write_rmat(tmp_path / name, 1000, 5000, seed=seed, num_features=3, num_classes=4, options=options)
    first = open_graph(tmp_path / "a")
    assert_same_graph(open_graph(tmp_path / "b"), first)
    other = open_graph(tmp_path / "c")
    assert other.features is not None
    assert not torch.equal(other.features, first.features)
    assert abs(float(first.features.mean())) < 0.1
    assert sorted(first.labels.unique().tolist()) == [0, 1, 2, 3]
    shares = [int(first.splits[name].sum()) / 1000 for name in ("train", "val", "test")]
    assert all(abs(share - wanted) < 0.05 for share, wanted in zip(shares, (0.6, 0.2, 0.2), strict=True))

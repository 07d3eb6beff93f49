"""Graphs that the storage tests write and read."""

from __future__ import annotations

import os

import pytest
import torch

from sagann.graph import Graph, Topology
from sagann.graph.rows import csr_tensor


@pytest.fixture(autouse=True)
def without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not cut the power, and syncing is most of their time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def make_graph(*, features: str = "dense", labels: str = "single", dtype: torch.dtype = torch.float32) -> Graph:
    """A graph of 7 vertices in 2 graphs with everything that a graph may carry."""
    generator = torch.Generator().manual_seed(0)
    src = torch.tensor([0, 1, 2, 2, 1, 4, 5, 6, 3])
    dst = torch.tensor([1, 2, 0, 0, 1, 3, 3, 5, 6])
    topology = Topology.from_coo(
        src=src,
        dst=dst,
        num_src=7,
        edge_data={
            "weight": torch.rand(9, generator=generator),
            "type": torch.arange(9) % 3,
            "vector": torch.rand(9, 2, generator=generator).to(torch.bfloat16),
        },
    )
    values = torch.randn(7, 4, generator=generator).to(dtype)
    sparse = csr_tensor(
        torch.tensor([0, 2, 2, 3, 3, 4, 5, 5], dtype=torch.int32),
        torch.tensor([0, 3, 1, 2, 0], dtype=torch.int32),
        torch.arange(1, 6, dtype=dtype),
        num_columns=4,
    )

    def mask(*vertices: int) -> torch.Tensor:
        return torch.isin(torch.arange(7), torch.tensor(vertices))

    return Graph(
        topology=topology,
        features={"dense": values, "csr": sparse, "none": None}[features],
        labels={
            "single": torch.tensor([0, 1, 2, -1, 0, 1, 2]),
            "multi": (torch.arange(21).reshape(7, 3) % 2).to(torch.uint8),
            "none": None,
        }[labels],
        num_classes=0 if labels == "none" else 3,
        splits={"train": mask(0, 1), "val": mask(4, 5), "test": mask(2, 6)},
        graph_ptr=torch.tensor([0, 3, 7]),
        graph_names=("first", "zweiter \u00fc"),
        graph_labels=torch.tensor([1, -1]),
        num_graph_classes=2,
        graph_targets=torch.tensor([[0.5, 1.0], [-2.0, 3.0]]),
        graph_splits={"train": torch.tensor([True, False]), "test": torch.tensor([False, True])},
        num_edge_types=3,
        feature_names=("a", "b", "\u00e7", "d"),
        class_names=("cat", "dog", "zweiter \u00fc"),
        edge_type_names=("likes", "eats", "is"),
        name="small",
    )


def assert_same_graph(found: Graph, expected: Graph) -> None:
    """Equal to the bit, in every field."""
    assert torch.equal(found.topology.indptr, expected.topology.indptr)
    assert torch.equal(found.topology.indices, expected.topology.indices)
    assert found.topology.indices.dtype == expected.topology.indices.dtype
    assert set(found.topology.edge_data) == set(expected.topology.edge_data)
    for name, rows in expected.topology.edge_data.items():
        assert found.topology.edge_data[name].dtype == rows.dtype
        assert torch.equal(found.topology.edge_data[name], rows)
    for name in ("feature_names", "class_names", "edge_type_names"):
        assert getattr(found, name) == getattr(expected, name)
    assert (found.features is None) == (expected.features is None)
    if expected.features is not None:
        assert found.features is not None
        assert found.features.layout == expected.features.layout
        assert found.features.dtype == expected.features.dtype
        assert torch.equal(found.features.to_dense(), expected.features.to_dense())
    assert (found.labels is None) == (expected.labels is None)
    if expected.labels is not None:
        assert torch.equal(found.labels, expected.labels)
    assert (found.targets is None) == (expected.targets is None)
    if expected.targets is not None:
        assert found.targets is not None
        assert found.targets.dtype == expected.targets.dtype
        assert torch.equal(found.targets, expected.targets)
    assert set(found.splits) == set(expected.splits)
    assert all(torch.equal(found.splits[name], mask) for name, mask in expected.splits.items())
    assert (found.graph_ptr is None) == (expected.graph_ptr is None)
    if expected.graph_ptr is not None:
        assert torch.equal(found.graph_ptr, expected.graph_ptr)
    ours, theirs = found.graphs.arrays(), expected.graphs.arrays()
    assert set(ours) == set(theirs)
    for name, rows in theirs.items():
        assert ours[name].dtype == rows.dtype
        assert torch.equal(ours[name], rows)
    for field in ("num_vertices", "num_classes", "num_edge_types", "graph_names", "num_graph_classes", "name"):
        assert getattr(found, field) == getattr(expected, field)

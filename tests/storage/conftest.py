"""Graphs that the storage tests write and read."""

from __future__ import annotations

import os

import pytest
import torch

from sagann.graph import Graph, Topology
from sagann.graph.graph import named_arrays
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


def assert_same_arrays(found: Graph, expected: Graph) -> None:
    """The same arrays with the same values, whatever their types."""
    ours, theirs = dict(named_arrays(found)), dict(named_arrays(expected))
    assert set(ours) == set(theirs)
    for name, rows in theirs.items():
        assert torch.equal(ours[name].to(rows.dtype), rows), name
    for field in ("num_vertices", "num_classes", "num_graph_classes", "num_edge_types"):
        assert getattr(found, field) == getattr(expected, field)


def assert_same_graph(found: Graph, expected: Graph) -> None:
    """Equal to the bit, in every field."""
    assert_same_arrays(found, expected)
    ours, theirs = dict(named_arrays(found)), dict(named_arrays(expected))
    # The offsets of sparse features are as wide as their reader makes them.
    assert all(
        ours[name].dtype == rows.dtype for name, rows in theirs.items() if not name.startswith("features_ind")
    )
    for field in ("feature_names", "class_names", "edge_type_names", "graph_names", "name"):
        assert getattr(found, field) == getattr(expected, field)

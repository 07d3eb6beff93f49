"""A batch of graphs moves whole, and graphs are cut out by their ranges."""

from __future__ import annotations

import torch

from sagann.runtime.loading import GraphBatches
from sagann.runtime.loading.graph_batch import side_by_side
from tests.runtime.loading.many_graphs import many_graphs


def test_every_array_of_a_batch_moves() -> None:
    batch = next(iter(GraphBatches(many_graphs(), batch_size=4)))
    moved = batch.to("meta")
    for array in (
        moved.topology.indices,
        moved.topology.edge_data["type"],
        moved.features,
        moved.graph_ptr,
        moved.graphs,
        moved.vertices,
        moved.graph_labels,
        moved.graph_targets,
    ):
        assert array is not None
        assert array.device.type == "meta"
    assert [hop is batch.topology for hop in batch.hops(3)] == [True] * 3


def test_a_graph_may_stand_in_any_place_and_no_other_edge_comes_along() -> None:
    graph = many_graphs((2, 3, 4))
    topology, graph_ptr, vertices = side_by_side(graph, torch.tensor([2, 0]))
    assert graph_ptr.tolist() == [0, 4, 6]
    assert vertices.tolist() == [5, 6, 7, 8, 0, 1]
    found = torch.stack([vertices[topology.indices.long()], vertices[topology.edge_dst().long()]])
    all_ends = torch.stack([graph.topology.indices.long(), graph.topology.edge_dst().long()])
    expected = torch.cat([all_ends[:, all_ends[1] >= 5], all_ends[:, all_ends[1] < 2]], 1)
    assert torch.equal(found, expected)

"""Generators: every whole number is a seed."""

from __future__ import annotations

import pytest
import torch

from sagann.graph import edge_split, random_split
from sagann.partition import vertex_order
from sagann.sampling import LinkSampler, NeighborSampler, hold_out_links
from tests.graphs import labelled_graph


@pytest.mark.parametrize("seed", [-(2**70), 2**64 + 3])
def test_a_seed_of_one_draw_is_a_seed_of_all(seed: int) -> None:
    graph = labelled_graph()
    assert edge_split(graph.topology, seed=seed).train.num_edges > 0
    assert NeighborSampler(graph.topology, [2], seed=seed).sample([1, 2]).num_edges > 0
    assert len(LinkSampler(graph.topology, seed=seed).sample(torch.arange(3), torch.arange(3)).seeds) > 0
    held = hold_out_links(graph, seed=seed, most=5)
    same = hold_out_links(graph, seed=seed % 2**64, most=5)
    assert torch.equal(held.links.src, same.links.src)
    assert torch.equal(held.links.negatives, same.links.negatives)
    split = random_split(graph, seed=seed)
    assert torch.equal(split.splits["train"], random_split(graph, seed=seed % 2**64).splits["train"])
    order = vertex_order(graph, "random", seed=seed)
    assert torch.equal(order, vertex_order(graph, "random", seed=seed % 2**64))

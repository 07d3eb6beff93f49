from __future__ import annotations

import torch

from sagann.graph import rmat_graph
from sagann.sampling import NeighborSampler


def sampled(num_seeds: int = 200):
    graph = rmat_graph(5000, 200_000, seed=0)
    return NeighborSampler(graph.topology, [20, 20]).sample(torch.arange(num_seeds))


def test_prepared_blocks_have_the_out_edges_of_others() -> None:
    # More edges than one thread sorts by default.
    ready, plain = sampled(3000).prepare(), sampled(3000)
    assert ready.blocks[0].num_edges > 1 << 15
    for ours, other in zip(ready.blocks, plain.blocks, strict=True):
        for name in ("indptr", "indices", "edge_ids"):
            assert getattr(ours.csr(), name).equal(getattr(other.csr(), name))

from __future__ import annotations

import importlib

import pytest
import torch

from sagann.graph import rmat_graph
from sagann.nn import SAGE
from sagann.sampling import NeighborSampler


def sampled(num_seeds: int = 200):  # type: ignore[no-untyped-def]
    graph = rmat_graph(5000, 200_000, seed=0)
    return NeighborSampler(graph.topology, [20, 20]).sample(torch.arange(num_seeds))


def test_prepared_blocks_have_the_out_edges_of_others() -> None:
    # More edges than one thread sorts by default.
    ready, plain = sampled(3000).prepare(), sampled(3000)
    assert ready.blocks[0].num_edges > 1 << 15
    for ours, other in zip(ready.blocks, plain.blocks, strict=True):
        for name in ("indptr", "indices", "edge_ids"):
            assert getattr(ours.csr(), name).equal(getattr(other.csr(), name))


def test_a_step_on_prepared_blocks_divides_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    block = sampled().prepare().blocks[0]
    layer = SAGE(4, 3)
    x = torch.randn(block.num_src, 4, requires_grad=True)
    expected = layer(sampled().blocks[0], x)
    # The package has a function of that name.
    run = importlib.import_module("sagann.kernels.edge.cpu.run")
    monkeypatch.setattr(run, "divide", lambda *_: pytest.fail("the work of a prepared block is divided again"))
    out = layer(block, x)
    out.sum().backward()
    assert out.equal(expected)

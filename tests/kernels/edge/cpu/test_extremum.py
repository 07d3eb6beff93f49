"""The gradient of a maximum of source rows."""

from __future__ import annotations

import pytest
import torch

from sagann.graph import Topology
from sagann.kernels import naive
from sagann.kernels.edge.cpu import scatter_extremum
from tests.graphs import odd_topologies

TOPOLOGIES = odd_topologies()


def test_the_gradient_of_a_hub_does_not_drift() -> None:
    num_dst = 100_000
    topology = Topology.from_coo(src=torch.zeros(num_dst).long(), dst=torch.arange(num_dst), num_src=num_dst)
    found = scatter_extremum(topology, torch.arange(num_dst)[:, None], torch.full((num_dst, 1), 0.1))
    torch.testing.assert_close(found[0].item(), 0.1 * num_dst, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("shape", [(1,), (3, 5)], ids=str)
def test_equals_autograd(name: str, shape: tuple[int, ...]) -> None:
    topology = TOPOLOGIES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(4, (topology.num_src, *shape), generator=generator).double().requires_grad_()
    best, edge = naive.gather_extremum(topology, x.index_select(0, topology.indices.long()), "max")
    grad = torch.randn(best.shape, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad(best, x, grad)
    torch.testing.assert_close(scatter_extremum(topology, edge, grad), expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(scatter_extremum(topology, edge.int(), grad), expected, rtol=1e-14, atol=1e-14)
    negated = torch._neg_view(-grad)
    torch.testing.assert_close(scatter_extremum(topology, edge, negated), expected, rtol=1e-14, atol=1e-14)

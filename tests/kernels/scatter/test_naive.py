import pytest
import torch

from sagann.kernels.scatter import naive
from tests.graphs import block_of, odd_topologies


@pytest.mark.parametrize("name", odd_topologies())
def test_scatter_copies_the_rows_of_both_ends(name: str) -> None:
    topology = odd_topologies()[name]
    x = torch.randn(topology.num_src, 3)
    src, dst = naive.scatter_src(topology, x), naive.scatter_dst(topology, x)
    edge = 0
    for vertex in range(topology.num_dst):
        for position in range(int(topology.indptr[vertex]), int(topology.indptr[vertex + 1])):
            assert torch.equal(src[edge], x[int(topology.indices[position])])
            assert torch.equal(dst[edge], x[vertex])
            edge += 1
    assert len(src) == len(dst) == edge == topology.num_edges


def test_scatter_over_a_block_takes_destinations_from_the_first_rows() -> None:
    block = block_of(odd_topologies()["skewed"], 11)
    x = torch.arange(block.num_src)[:, None]
    assert naive.scatter_dst(block, x).max() == block.edge_dst().max() <= 10
    assert torch.equal(naive.scatter_src(block, x)[:, 0], block.indices.long())

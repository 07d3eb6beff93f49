"""Expected mini-batches are those of the sampler on graphs of the law."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
import torch

from sagann.graph import Topology
from sagann.plan.hybrid.batches import expected_counts
from sagann.plan.hybrid.degrees import DegreeClass, DegreeLaw, measured_law
from sagann.sampling import NeighborSampler

NUM_VERTICES = 20_000


def graph(symmetric: bool) -> Topology:
    """Log-normal degrees; edges join ends that are drawn in proportion to them."""
    generator = np.random.default_rng(0)
    weights = generator.lognormal(0.0, 1.2, NUM_VERTICES)
    others = weights if symmetric else generator.permutation(weights)
    num_edges = 8 * NUM_VERTICES
    src = generator.choice(NUM_VERTICES, num_edges, p=weights / weights.sum())
    dst = generator.choice(NUM_VERTICES, num_edges, p=others / others.sum())
    if symmetric:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    return Topology.from_coo(src=torch.from_numpy(src), dst=torch.from_numpy(dst), num_src=NUM_VERTICES)


@pytest.mark.parametrize(
    ("fanouts", "num_seeds", "symmetric"),
    [((25, 10), 64, False), ((25, 10), 512, True), ((5, 5, 5), 256, False), ((-1,), 100, True)],
)
def test_counts_are_those_of_sampled_batches(fanouts: tuple[int, ...], num_seeds: int, symmetric: bool) -> None:
    topology = graph(symmetric)
    ins = torch.diff(topology.indptr)
    outs = torch.bincount(topology.indices.long(), minlength=NUM_VERTICES)
    counts = expected_counts(measured_law(ins.tolist(), outs.tolist()), fanouts, num_seeds)
    sampler = NeighborSampler(topology, fanouts, seed=0)
    generator = torch.Generator().manual_seed(0)
    batches = [
        sampler.sample(torch.randperm(NUM_VERTICES, generator=generator)[:num_seeds], batch=number)
        for number in range(24)
    ]
    # Blocks are in the order in which a model walks them: the last hop first, as layers count.
    for layer in range(len(fanouts)):
        blocks = [each.blocks[layer] for each in batches]
        assert counts.edges[layer] == pytest.approx(fmean(each.num_edges for each in blocks), rel=0.05)
        assert counts.vertices[layer] == pytest.approx(fmean(each.num_src for each in blocks), rel=0.05)
    assert counts.vertices[-1] == num_seeds
    assert counts.num_edges == sum(counts.edges)


def test_without_deduplication_every_edge_brings_a_vertex() -> None:
    law = DegreeLaw(num_vertices=1000, classes=(DegreeClass(share=1.0, in_degree=50, out_degree=50),))
    counts = expected_counts(law, (25, 10), 4, deduplicated=False)
    assert counts.edges == pytest.approx((10 * 104, 4 * 25))
    assert counts.vertices == pytest.approx((104 + 1040, 104, 4))
    fewer = expected_counts(law, (25, 10), 4)
    assert fewer.edges[1] == counts.edges[1]
    assert fewer.vertices[0] < counts.vertices[0]


def test_a_batch_is_no_larger_than_the_graph() -> None:
    law = DegreeLaw(num_vertices=100, classes=(DegreeClass(share=1.0, in_degree=50, out_degree=50),))
    assert expected_counts(law, (-1, -1), 100).vertices[0] == pytest.approx(100)
    assert expected_counts(law, (25, 10), 0).vertices == (0, 0, 0)

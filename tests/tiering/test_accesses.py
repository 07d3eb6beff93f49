"""Measured reads of rows, and the shares that hot rows take."""

from __future__ import annotations

import pytest
import torch

from sagann.errors import InputError
from sagann.sampling import NeighborSampler, seed_batches
from sagann.tiering import access_curve, hottest, measured_accesses
from tests.graphs import odd_topologies, random_topology


@pytest.mark.parametrize("name", odd_topologies())
def test_counts_are_those_of_the_batches(name: str) -> None:
    topology = odd_topologies()[name]
    seeds = torch.arange(0, topology.num_src, 2)
    expected = [0] * topology.num_src
    sampler = NeighborSampler(topology, [3, 2], seed=4)
    for number, batch in enumerate(seed_batches(seeds, 2, seed=4, epoch=1)):
        for vertex in sampler.sample(batch, epoch=1, batch=number).src_ids.tolist():
            expected[vertex] += 1
    found = measured_accesses(topology, seeds, [3, 2], batch_size=2, seed=4, epoch=1)
    assert found.dtype == torch.int64
    assert found.tolist() == expected


def test_counts_do_not_depend_on_threads() -> None:
    topology, given = random_topology(500, 4000), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(measured_accesses(topology, torch.arange(400), [5, 5], batch_size=16))
    finally:
        torch.set_num_threads(given)
    assert torch.equal(*found)


def test_an_error_of_a_batch_surfaces() -> None:
    with pytest.raises(InputError, match="vertex id out of range: 60"):
        measured_accesses(random_topology(53, 400), torch.tensor([1, 60]), [2], batch_size=1)


def test_the_curve_is_the_share_of_the_hottest_rows() -> None:
    counts = torch.tensor([3, 0, 1, 6])
    score = torch.tensor([0.1, 0.2, 0.3, 0.3])
    curve = access_curve(score, counts)
    assert hottest(score).tolist() == [2, 3, 1, 0]
    assert curve.tolist() == pytest.approx([0, 0.1, 0.7, 0.7, 1.0])
    oracle = access_curve(counts, counts)
    assert oracle.tolist() == pytest.approx([0, 0.6, 0.9, 1.0, 1.0])
    assert bool((oracle >= curve).all())


def test_curves_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(InputError, match=r"scores and counts differ in number: \[2\] and \[3\]"):
        access_curve(torch.zeros(2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="no row was read: 0 reads of 3 rows"):
        access_curve(torch.zeros(3), torch.zeros(3, dtype=torch.int64))

"""Where rows lie, and which of them are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Topology
from sagann.graph.rmat import rmat_edges
from sagann.sampling import NeighborSampler, seed_batches
from sagann.tiering import access_curve, hottest, measured_accesses
from sagann.tiering.placement import place_hot_rows
from sagann.tiering.scores import spread
from tests.graphs import odd_topologies, random_topology


def test_a_device_with_a_link_to_a_part_of_a_group_is_alone() -> None:
    groups = place_hot_rows([2] * 3, num_rows=9, linked=lambda first, second: {first, second} != {0, 2})
    assert [group.devices for group in groups] == [(0, 1), (2,)]


def test_all_may_be_replicated() -> None:
    (group,) = place_hot_rows([5, 3], num_rows=100, replicated=1.0)
    # The larger device has room for two rows more.
    assert group.seen_from(1)[0].tolist() == [1, 1, 1, 0, 0]
    (group,) = place_hot_rows([5, 5], num_rows=4, replicated=1.0)
    assert (group.num_replicated, group.num_hot_rows) == (4, 4)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=5),
    st.integers(0, 60),
    st.floats(0, 1),
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4))),
)
def test_rows_lie_where_they_are_read_from(
    num_slots: list[int], num_rows: int, replicated: float, links: set[tuple[int, int]]
) -> None:
    groups = place_hot_rows(
        num_slots,
        num_rows=num_rows,
        replicated=replicated,
        linked=lambda first, second: (first, second) in links or (second, first) in links,
    )
    assert sorted(device for group in groups for device in group.devices) == list(range(len(num_slots)))
    for group in groups:
        held = {device: group.held_by(device) for device in group.devices}
        for device in group.devices:
            assert len(held[device]) <= num_slots[device]
            owners, slots = group.seen_from(device)
            assert len(owners) == group.num_hot_rows <= num_rows
            assert [held[owner][slot] for owner, slot in zip(owners, slots, strict=True)] == list(
                range(len(owners))
            )
        # All room is used, unless there are no more rows.
        wanted = sum(num_slots[device] - group.num_replicated for device in group.devices) + group.num_replicated
        assert group.num_hot_rows == min(num_rows, wanted)
        # Of any number of hottest rows that fit everywhere, no device has two more than another one.
        full = min(num_slots[device] for device in group.devices) - group.num_replicated
        counts = np.bincount(group.owner[: full * len(group.devices)], minlength=len(num_slots))
        assert np.ptp(counts[list(group.devices)]) <= 1


@pytest.mark.parametrize("replicated", [-0.1, 1.5, float("nan")])
def test_a_part_out_of_range_is_refused(replicated: float) -> None:
    with pytest.raises(
        InputError, match=r"part out of range: .*, expected 0.0 to 1.0 \(in replicated\)\. Give the part"
    ):
        place_hot_rows([1], num_rows=2, replicated=replicated)


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


def test_counts_do_not_depend_on_threads(threads: Any) -> None:
    topology, found = random_topology(500, 4000), []
    for count in (1, 3):
        threads(count)
        found.append(measured_accesses(topology, torch.arange(400), [5, 5], batch_size=16))
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


def values_of(num_dst: int) -> Tensor:
    return torch.rand(num_dst, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def in_order_of_edges(topology: Topology, values: Tensor) -> Tensor:
    """One plain loop: what any number of threads gives, to the last bit."""
    result = np.zeros(topology.num_src)
    np.add.at(result, topology.indices.numpy(), values[topology.edge_dst().long()].numpy())
    return torch.from_numpy(result)


@pytest.fixture(scope="module")
def power_law() -> Topology:
    src, dst = rmat_edges(3000, 200_000, seed=0)
    return Topology.from_coo(src=src, dst=dst, num_src=3000)


def test_values_are_added_in_the_order_of_the_edges(power_law: Topology) -> None:
    values = values_of(power_law.num_dst)
    assert torch.equal(spread(power_law, values), in_order_of_edges(power_law, values))


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_edges_of_destinations_without_a_value_are_not_read(power_law: Topology, share: float) -> None:
    values = values_of(power_law.num_dst)
    # A sum of logarithms begins with zeros of either sign.
    values[values > share] = -0.0
    # No source has the ids in the place of edges that give nothing.
    indices = power_law.indices.where(values[power_law.edge_dst().long()] != 0, -1)
    unread = Topology(indptr=power_law.indptr, indices=indices, num_src=power_law.num_src, validate=False)
    assert torch.equal(spread(unread, values), in_order_of_edges(power_law, values))

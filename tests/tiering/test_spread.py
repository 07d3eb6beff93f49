"""Sums at the sources of edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.graph.rmat import rmat_edges
from sagann.tiering import spread as spread_module
from sagann.tiering.spread import spread
from tests.graphs import topology_of


def values_of(num_dst: int) -> Tensor:
    return torch.rand(num_dst, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def in_order_of_edges(topology: Topology, values: Tensor) -> Tensor:
    """One plain loop: what any number of threads gives, to the last bit."""
    result = np.zeros(topology.num_src)
    np.add.at(result, topology.indices.numpy(), values[topology.edge_dst().long()].numpy())
    return torch.from_numpy(result)


@pytest.fixture
def threads() -> object:
    given = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(given)


@pytest.fixture(scope="module")
def power_law() -> Topology:
    src, dst = rmat_edges(3000, 200_000, seed=0)
    return Topology.from_coo(src=src, dst=dst, num_src=3000)


@pytest.mark.parametrize(("num_threads", "piece_edges"), [(1, 1 << 22), (2, 64), (3, 70_001)])
def test_bits_do_not_depend_on_threads_and_pieces(
    power_law: Topology, num_threads: int, piece_edges: int, threads: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread_module, "PIECE_EDGES", piece_edges)
    threads(num_threads)
    values = values_of(power_law.num_dst)
    assert torch.equal(spread(power_law, values), in_order_of_edges(power_law, values))


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_edges_of_destinations_without_a_value_are_not_read(
    power_law: Topology, share: float, threads: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread_module, "PIECE_EDGES", 70_001)
    threads(2)
    values = values_of(power_law.num_dst)
    # A sum of logarithms begins with zeros of either sign.
    values[values > share] = -0.0
    # No source has the ids in the place of edges that give nothing.
    indices = power_law.indices.where(values[power_law.edge_dst().long()] != 0, -1)
    unread = Topology(indptr=power_law.indptr, indices=indices, num_src=power_law.num_src, validate=False)
    assert torch.equal(spread(unread, values), in_order_of_edges(power_law, values))


def test_a_row_longer_than_a_piece_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread_module, "PIECE_EDGES", 5)
    hub = topology_of([(v, 0) for v in range(1, 37)] + [(0, 9), (9, 12)], 37)
    assert torch.equal(spread(hub, values_of(37)), in_order_of_edges(hub, values_of(37)))

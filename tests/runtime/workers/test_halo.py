"""Rows of the halo and their gradients, and what travels for a layer; workers are threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.nn import GCN, SAGE, GatedGCN
from sagann.partition import part_of
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.workers import Workers, worker_part
from sagann.runtime.workers.halo import Halo
from sagann.saga.engine import using_engine
from tests.graphs import labelled_graph, odd_topologies, random_topology
from tests.runtime.workers.threads import in_threads
from tests.tolerances import assert_close

TOPOLOGIES = odd_topologies()


def halo_of(topology: Topology, workers: Workers) -> Halo:
    return Halo(part_of(topology, workers.bounds(topology.indptr), workers.rank), workers)


def part_topology(topology: Topology, workers: Workers) -> Topology:
    halo = halo_of(topology, workers)
    return halo.topology({name: rows[halo.part.edges] for name, rows in topology.edge_data.items()})


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_rows_of_the_halo_come_and_their_gradients_go_back_to_the_owners(name: str, size: int) -> None:
    topology = TOPOLOGIES[name]
    rows = torch.randn(topology.num_src, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # The loss of an edge is a number of its own times the source's row.
    factors = torch.arange(1.0, topology.num_edges + 1, dtype=torch.float64).reshape(-1, 1)
    expected = torch.zeros_like(rows).index_add_(0, topology.indices.long(), factors.expand(-1, 3))

    def work(workers: Workers) -> Tensor:
        halo = halo_of(topology, workers)
        part, own = halo.part, rows[halo.part.vertices].clone().requires_grad_()
        completed = halo.complete({"": own})[""]
        assert torch.equal(completed, torch.cat([rows[part.vertices], rows[part.halo]]))
        (completed[part.indices.long()] * factors[part.edges]).sum().backward()
        return own.grad

    assert_close(torch.cat(in_threads(work, size)), expected)


def sent_bytes(graph: Graph, layer: torch.nn.Module) -> list[tuple[int, int]]:
    """For each of two workers: bytes sent in a forward pass of a layer, and the number of rows that the other one needs."""

    def work(workers: Workers) -> tuple[int, int]:
        part = worker_part(graph, workers, opened=graph)
        before = workers.sent_bytes
        layer(part.topology, part.features.clone())
        other = part_of(graph.topology, part.bounds, 1 - workers.rank)
        return workers.sent_bytes - before, len(other.halo)

    return in_threads(work, 2)


@pytest.mark.parametrize(
    ("layer", "width"),
    [
        # A sum commutes with the linear map, so mapped rows travel, which are narrower.
        (SAGE(64, 4), 4),
        # Wider maps come after the gather.
        (SAGE(8, 64), 8),
        # The gate and the row of a source.
        (GatedGCN(8, 64), 16),
    ],
)
def test_rows_travel_once_in_the_width_that_edges_read(layer: torch.nn.Module, width: int) -> None:
    in_dim = 64 if width == 4 else 8
    topology = random_topology(60, 300)
    graph = Graph(topology=topology, features=torch.randn(60, in_dim))
    for found, num_rows in sent_bytes(graph, layer):
        assert num_rows > 0
        assert found == num_rows * width * 4


@pytest.mark.parametrize(("engine", "is_kept"), [(CompiledEngine(), True), (CompiledEngine(lean=True), False)])
def test_rows_of_constant_features_travel_once(engine: CompiledEngine, is_kept: bool) -> None:
    graph, layer = Graph(topology=random_topology(60, 300), features=torch.randn(60, 8)), GatedGCN(8, 64)

    def work(workers: Workers) -> tuple[list[int], list[Tensor]]:
        part, sent, results = worker_part(graph, workers, opened=graph), [], []
        with using_engine(engine):
            for _ in range(3):
                before = workers.sent_bytes
                results.append(layer(part.topology, part.features).detach())
                sent.append((workers.sent_bytes - before) // 4)
        return sent, results

    for sent, results in in_threads(work, 2):
        # The gate travels in every pass, and beside it at first the features, which are as wide.
        assert sent == [sent[0], sent[0] // 2, sent[0] // 2] if is_kept else [sent[0]] * 3
        assert all(torch.equal(each, results[0]) for each in results)


def test_a_layer_is_called_with_the_rows_of_own_vertices() -> None:
    graph = GCN.prepare(labelled_graph())

    def work(workers: Workers) -> None:
        part = worker_part(graph, workers, opened=graph)
        num_own, num_src = part.topology.num_dst, part.topology.num_src
        assert num_own < num_src
        with pytest.raises(InputError, match=rf"expected a tensor \[{num_own}, F\]"):
            GCN(8, 3)(part.topology, torch.zeros(num_src, 8))

    in_threads(work, 2)


def test_a_second_derivative_is_refused() -> None:
    topology = random_topology(20, 60)

    def work(workers: Workers) -> None:
        part = part_topology(topology, workers)
        own = torch.ones(part.num_given, 1, requires_grad=True)
        completed = part.remote.complete({"": own})[""]
        (grad,) = torch.autograd.grad((completed**2).sum(), own, create_graph=True)
        with pytest.raises(InputError, match="a gradient of a gradient was asked for"):
            grad.sum().backward()

    in_threads(work, 2)

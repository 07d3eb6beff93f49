"""Parts of workers, which are threads: what they exchange for mini-batches and what moves are those of the whole graph, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.graph.feature_store import feature_store
from sagann.graph.rows import is_sparse, row_arrays
from sagann.partition import part_of
from sagann.runtime.workers import PartEdges, PartRows, WorkerPart, Workers, worker_part
from sagann.sampling import MiniBatch, NeighborSampler
from sagann.train.tiers import keep_hot
from tests.graphs import labelled_graph, odd_topologies, random_topology
from tests.runtime.workers.threads import in_threads
from tests.sampling.naive import assert_same
from tests.train.runs import sparse_graph

SEEDS = [torch.tensor(ids) for ids in ([0, 5, 9], [9], [39, 2, 17, 11])]
"Seeds of each of three workers: the blocks of one reach vertices of all."
BOUNDS = [(0, 10, 25, 40), (0, 0, 40, 40), (0, 40, 40, 40)]


def of_edges(graph: Graph) -> Graph:
    """The graph with edge data of two types."""
    numbers = torch.arange(graph.num_edges)
    topology = graph.topology.with_edge_data(weight=numbers / 7, attr=torch.stack([numbers, -numbers], 1))
    return graph.with_topology(topology)


def sampled(sampler: NeighborSampler, seeds: Tensor) -> list[MiniBatch]:
    return [sampler.sample(seeds, epoch=2, batch=batch) for batch in range(3)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize(("fanouts", "with_replacement"), [((3, 2), False), ((-1, 4), False), ((2, -1, 3), True)])
def test_blocks_are_those_of_the_whole_graph(
    bounds: Sequence[int], fanouts: tuple[int, ...], with_replacement: bool
) -> None:
    graph = of_edges(labelled_graph(40))
    assert graph.num_vertices == 40

    def work(workers: Workers) -> list[MiniBatch]:
        part = worker_part(graph, workers, opened=graph, bounds=bounds)
        sampler = NeighborSampler(graph.topology, fanouts, replace=with_replacement, seed=4)
        sampler.edges = PartEdges(part, workers.aside("testing"))
        return sampled(sampler, SEEDS[workers.rank])

    for seeds, found in zip(SEEDS, in_threads(work, 3), strict=True):
        right = sampled(NeighborSampler(graph.topology, fanouts, replace=with_replacement, seed=4), seeds)
        for mine, theirs in zip(found, right, strict=True):
            assert_same(mine, theirs)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_are_those_of_the_whole_graph(bounds: Sequence[int], is_sparse: bool) -> None:
    graph = sparse_graph() if is_sparse else labelled_graph(40)
    bounds = [bound * graph.num_vertices // 40 for bound in bounds]

    def work(workers: Workers) -> Tensor:
        part = worker_part(graph, workers, opened=graph, bounds=bounds)
        return PartRows(part, workers.aside("testing")).rows(SEEDS[workers.rank])

    assert graph.features is not None
    for seeds, found in zip(SEEDS, in_threads(work, 3), strict=True):
        right = feature_store(graph.features).rows(seeds)
        assert len(row_arrays(found)) == (3 if is_sparse else 1)
        for mine, theirs in zip(row_arrays(found), row_arrays(right), strict=True):
            assert torch.equal(mine, theirs)


def test_hot_rows_do_not_travel() -> None:
    graph = labelled_graph(40)
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    graph = replace(graph, features=features)
    hottest = torch.arange(40).flip(0)

    def work(workers: Workers) -> tuple[int, list[Tensor], tuple[int, int]]:
        part = worker_part(graph, workers, opened=graph, bounds=(0, 20, 40))
        rows = PartRows(part, workers.aside("testing"))
        rows.keep(5, hottest)
        found = [rows.rows(ids) for ids in (torch.tensor([39, 1, 0, 30, 15, 36]), torch.tensor([37]))]
        return rows.num_hot_rows, found, (rows.traffic().hot.rows, rows.traffic().cold.rows)

    (first, second) = in_threads(work, 2)
    for _, found, _ in (first, second):
        assert torch.equal(found[0], features[[39, 1, 0, 30, 15, 36]])
        assert torch.equal(found[1], features[[37]])
    # The hottest rows of others are 39 to 35 for the first worker, 19 to 15 for the second.
    assert [each[0] for each in (first, second)] == [5, 5]
    assert first[2] == (3, 1), "39, 36 and 37; 30"
    assert second[2] == (1, 2), "15; 1 and 0"


@pytest.mark.parametrize("least", [None, 3])
def test_all_workers_keep_as_many_hot_rows_as_the_one_with_the_least_room(least: int | None) -> None:
    graph = labelled_graph(40)
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    graph = replace(graph, features=features)

    def work(workers: Workers) -> tuple[int, Tensor]:
        rows = PartRows(worker_part(graph, workers, opened=graph, bounds=(0, 20, 40)), workers.aside("testing"))
        count = least if workers.rank else 9
        hot = None if count is None else count * (rows.row_bytes + rows.id_bytes)
        keep_hot(rows, hot, lambda: torch.arange(40), workers, say=lambda text: None)
        return rows.num_hot_rows, rows.rows(torch.tensor([39, 1, 20]))

    for count, found in in_threads(work, 2):
        assert count == (least or 0)
        assert torch.equal(found, features[[39, 1, 20]])


TOPOLOGIES = odd_topologies(types=3)


def graph_of(topology: Topology) -> Graph:
    rows = torch.randn(topology.num_dst, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = torch.randn(topology.num_edges, 2, generator=torch.Generator().manual_seed(2))
    return Graph(topology=topology.with_edge_data(pair=weights), features=rows, num_edge_types=3)


def divisions(num_vertices: int) -> list[tuple[int, ...]]:
    """Bounds of three parts: some empty, in several places."""
    cuts = sorted({0, 1, num_vertices // 3, num_vertices - 1, num_vertices} & set(range(num_vertices + 1)))
    return [(0, *inner, num_vertices) for inner in combinations_with_replacement(cuts, 2)]


def require_part(part: WorkerPart, graph: Graph, bounds: tuple[int, ...]) -> None:
    topology, rank = graph.topology, part.workers.rank
    expected, found = part_of(topology, bounds, rank), part.halo.part
    assert found.bounds == part.bounds == bounds
    assert found.edges == expected.edges
    for name in ("indptr", "indices", "halo"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs), name
    assert set(part.topology.edge_data) == set(topology.edge_data)
    for name, rows in topology.edge_data.items():
        assert torch.equal(part.topology.edge_data[name], rows[expected.edges])
    rows = graph.features.to_dense() if is_sparse(graph.features) else graph.features
    own = part.features.to_dense() if is_sparse(part.features) else part.features
    assert torch.equal(own, rows[part.vertices])
    ids = torch.arange(topology.num_src, dtype=torch.float32)
    assert torch.equal(
        part.halo.complete({"": ids[part.vertices]})[""], torch.cat([ids[part.vertices], ids[expected.halo]])
    )


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_parts_move_anywhere_and_back(name: str) -> None:
    graph = graph_of(TOPOLOGIES[name])
    order = divisions(graph.num_vertices)
    order = order[::2] + order[::-1]

    def work(workers: Workers) -> None:
        # Rows that the model has made travel; rows as the graph was opened are read.
        made = worker_part(graph, workers, opened=replace(graph, features=graph.features.clone()))
        read = worker_part(graph, workers, opened=graph)
        assert made.opened_features is None
        assert read.opened_features is graph.features
        for bounds in order:
            for part in (made, read):
                part.move(bounds)
                require_part(part, graph, bounds)

    in_threads(work, 3)


@pytest.mark.parametrize("is_opened", [True, False])
def test_sparse_features_move(is_opened: bool) -> None:
    graph = sparse_graph()
    assert is_sparse(graph.features)
    num_vertices = graph.num_vertices
    opened = graph if is_opened else replace(graph, features=graph.features.clone())

    def work(workers: Workers) -> None:
        part = worker_part(graph, workers, opened=opened)
        for bounds in (
            (0, 3, num_vertices),
            (0, num_vertices, num_vertices),
            (0, 0, num_vertices),
            (0, 50, num_vertices),
        ):
            part.move(bounds)
            require_part(part, graph, bounds)
            assert is_sparse(part.features)
            assert part.first_value == int(graph.features.crow_indices()[part.vertices.start])

    in_threads(work, 2)


@pytest.mark.parametrize("name", ["features", "weight"])
def test_rows_that_learn_are_refused(name: str) -> None:
    graph = graph_of(random_topology(60, 300, types=3))
    if name == "features":
        graph = replace(graph, features=graph.features.clone().requires_grad_())
    else:
        weight = torch.ones(graph.num_edges, requires_grad=True)
        graph = replace(graph, topology=graph.topology.with_edge_data(weight=weight))

    def work(workers: Workers) -> None:
        with pytest.raises(InputError, match=f"not divided among workers: '{name}' requires a gradient"):
            worker_part(graph, workers, opened=graph)

    in_threads(work, 2)

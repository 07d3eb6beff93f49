"""Edges and features that workers exchange for mini-batches: those of the whole graph, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sagann.graph import Graph
from sagann.graph.feature_store import feature_store
from sagann.graph.rows import row_arrays
from sagann.runtime.workers import PartEdges, PartRows, Workers, worker_part
from sagann.sampling import MiniBatch, NeighborSampler
from sagann.train.tiers import keep_hot
from tests.graphs import labelled_graph
from tests.runtime.workers.threads import in_threads
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
            assert torch.equal(mine.src_ids, theirs.src_ids)
            for one, other in zip(mine.blocks, theirs.blocks, strict=True):
                assert (one.num_src, one.num_dst) == (other.num_src, other.num_dst)
                assert torch.equal(one.indptr, other.indptr)
                assert one.edge_ids is not None
                assert other.edge_ids is not None
                arrays = {"indices": one.indices, "ids": one.edge_ids, **one.edge_data}
                others = {"indices": other.indices, "ids": other.edge_ids, **other.edge_data}
                for name, array in arrays.items():
                    assert array.dtype == others[name].dtype, name
                    assert torch.equal(array, others[name]), name


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

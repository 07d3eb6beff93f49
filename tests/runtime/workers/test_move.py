"""A moved part is bit for bit the part that a worker makes of the whole graph; workers are threads."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

import pytest
import torch

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.graph.rows import is_sparse
from sagann.partition import part_of
from sagann.runtime.workers import WorkerPart, Workers, worker_part
from tests.graphs import odd_topologies, random_topology
from tests.runtime.workers.threads import in_threads
from tests.train.runs import sparse_graph

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
    """Require what the whole graph has for these bounds."""
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

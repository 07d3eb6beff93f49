"""Cost features against a loop over destinations and runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from sagann.graph import Graph, Topology
from sagann.graph.rmat import rmat_edges
from sagann.partition import ACCESS_BYTES, FEATURES, count_cost_features
from sagann.storage import open_graph, save_graph
from tests.graphs import odd_topologies, random_topology, topology_of

WIDTHS = (4, 64, 100, 2408)


def runs_of(sources: list[int]) -> list[list[int]]:
    """Sources cut where the next one is neither the same nor the following id."""
    runs: list[list[int]] = []
    for source in sources:
        if runs and source - runs[-1][-1] in (0, 1):
            runs[-1].append(source)
        else:
            runs.append([source])
    return runs


def accesses(num_bytes: int, device: str) -> int:
    return -(-num_bytes // ACCESS_BYTES[device])


def naive(topology: Topology, first: int, stop: int, row_bytes: int, device: str) -> list[int]:
    """The features of a part, destination by destination, as the module's docstring defines them."""
    id_bytes = topology.indices.element_size()
    total = [0] * len(FEATURES)
    for v in range(first, stop):
        sources = topology.indices[topology.indptr[v] : topology.indptr[v + 1]].tolist()
        runs = runs_of(sources)
        ids = sum(accesses(len(run) * id_bytes, device) for run in runs)
        rows = sum(accesses(len(set(run)) * row_bytes, device) for run in runs)
        total = [a + b for a, b in zip(total, (1, len(sources), len(runs), ids, rows), strict=True)]
    return total


@pytest.fixture(scope="module")
def power_law() -> Topology:
    src, dst = rmat_edges(3000, 200_000, seed=0, scramble=False)
    return Topology.from_coo(src=src, dst=dst, num_src=3000)


@pytest.mark.parametrize("device", ACCESS_BYTES)
@pytest.mark.parametrize("name", odd_topologies())
def test_every_part_has_the_features_of_its_destinations(name: str, device: str) -> None:
    topology = odd_topologies()[name]
    found = count_cost_features(topology, WIDTHS, device=device)
    assert found.num_vertices == topology.num_dst
    for row_bytes in WIDTHS:
        for first, stop in ((0, topology.num_dst), (0, 0), (1, topology.num_dst), (1, 2)):
            expected = naive(topology, first, stop, row_bytes, device)
            assert found.of_part(first, stop, row_bytes).tolist() == expected


@given(st.lists(st.lists(st.integers(0, 40), max_size=60), max_size=6), st.sampled_from(WIDTHS))
def test_any_order_of_in_edges_is_cut_into_runs(rows: list[list[int]], row_bytes: int) -> None:
    indptr = torch.tensor([0, *np.cumsum([len(row) for row in rows])], dtype=torch.int64)
    indices = torch.tensor([source for row in rows for source in row], dtype=torch.int32)
    topology = Topology(indptr=indptr, indices=indices, num_src=41)
    found = count_cost_features(topology, [row_bytes])
    assert found.of_part(0, len(rows), row_bytes).tolist() == naive(topology, 0, len(rows), row_bytes, "cpu")


def test_the_example_of_the_paper() -> None:
    # ROC, Sec. 4.1: sources 3, 4, 6 and 8 are three runs. Rows of 64 values take two warps each.
    topology = topology_of([(3, 1), (4, 1), (6, 1), (8, 1)], 9)
    features = count_cost_features(topology, [64 * 4], device="cuda").of_part(1, 2, 64 * 4)
    assert dict(zip(FEATURES, features.tolist(), strict=True)) == {
        "vertices": 1,
        "edges": 4,
        "runs": 3,
        "id accesses": 3,
        "row accesses": 4 + 2 + 2,
    }


def test_a_part_of_a_large_graph(power_law: Topology) -> None:
    found = count_cost_features(power_law, WIDTHS)
    assert found.of_part(17, 2000, 100).tolist() == naive(power_law, 17, 2000, 100, "cpu")


def test_wide_ids_take_more_accesses() -> None:
    narrow = random_topology(40, 300)
    wide = Topology(indptr=narrow.indptr, indices=narrow.indices.long(), num_src=40)
    found = count_cost_features(wide, [64]).of_part(0, 40, 64)
    assert found.tolist() == naive(wide, 0, 40, 64, "cpu")


def test_mapped_arrays_are_read_in_place(tmp_path: Path, power_law: Topology) -> None:
    save_graph(Graph(topology=power_law), tmp_path / "graph")
    found = count_cost_features(open_graph(tmp_path / "graph").topology, [100])
    assert np.array_equal(found.sums, count_cost_features(power_law, [100]).sums)

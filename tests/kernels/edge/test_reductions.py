"""Records of reductions: states of parts of the edges merge to the state of all edges."""

from __future__ import annotations

import pytest
import torch

from sagann.graph import Topology
from sagann.kernels.edge.reductions import reduction
from tests.graphs import odd_topologies
from tests.tolerances import assert_close


def part_of(topology: Topology, edges: torch.Tensor) -> Topology:
    counts = torch.bincount(topology.edge_dst()[edges].long(), minlength=topology.num_dst)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return Topology(indptr=indptr, indices=topology.indices[edges], num_src=topology.num_src)


@pytest.mark.parametrize("name", ["sum", "max", "min", "softmax", "moments", "product"])
@pytest.mark.parametrize("graph", ["isolated vertices", "multi-edges", "skewed"])
def test_states_of_parts_merge_to_the_state_of_all(graph: str, name: str) -> None:
    topology, record = odd_topologies()[graph], reduction(name)
    values = [torch.randn(topology.num_edges, *shape).double() for shape in [(3,), (3, 2)][-record.num_values :]]
    values[-1][::3] = 0
    parts = []
    for edges in (torch.arange(0, topology.num_edges, 2), torch.arange(1, topology.num_edges, 2)):
        state = record.reduce(part_of(topology, edges), [value[edges] for value in values])
        known = torch.cat([edges, torch.tensor([-1])])
        parts.append(
            [known[rows] if part.is_edge else rows.clone() for part, rows in zip(record.state, state, strict=True)]
        )
    record.merge(*parts)
    for found, expected in zip(parts[0], record.reduce(topology, values), strict=True):
        if expected.is_floating_point():
            assert_close(found, expected)
        else:
            assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["sum", "max", "softmax", "moments", "product"])
def test_a_row_without_edges_is_neutral(name: str) -> None:
    record = reduction(name)
    topology = Topology(indptr=torch.tensor([0, 0]), indices=torch.empty(0, dtype=torch.int32), num_src=1)
    state = record.reduce(topology, [torch.zeros(0, 2)] * record.num_values)
    assert [rows.unique().tolist() for rows in state] == [[part.neutral] for part in record.state]

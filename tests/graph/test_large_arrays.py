"""Large arrays: made where a caller says, slab by slab, with the values of one made at once."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest
import torch

from sagann.graph import Graph, add_self_loops, normalise, normalise_features
from sagann.graph.large_arrays import empty_array, made_by, slabs
from tests.graphs import odd_topologies

TOPOLOGIES = odd_topologies(types=3)
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_slabs_change_no_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = TOPOLOGIES[name]
    graph = Graph(topology=topology, num_edge_types=3)
    whole = normalise(add_self_loops(graph), "symmetric", name="gcn_weight").topology
    for module in ("transform", "normalise"):
        # By its module: the package has a function of the same name.
        monkeypatch.setattr(import_module(f"sagann.graph.{module}"), "slabs", partial(slabs, most_edges=2))
    parted = normalise(add_self_loops(graph), "symmetric", name="gcn_weight").topology
    assert torch.equal(parted.indptr, whole.indptr)
    assert torch.equal(parted.indices, whole.indices)
    for data, rows in whole.edge_data.items():
        assert torch.equal(parted.edge_data[data], rows), data


def test_what_preparing_makes_lies_where_the_caller_says() -> None:
    made: dict[int, tuple[int, ...]] = {}

    def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.full(tuple(shape), 77, dtype=dtype)
        made[tensor.data_ptr()] = tuple(shape)
        return tensor

    topology = TOPOLOGIES["skewed"]
    graph = Graph(topology=topology, features=torch.rand(topology.num_dst, 3), num_edge_types=3)
    with made_by(allocate):
        prepared = normalise(add_self_loops(normalise_features(graph)), "row", name="mean")
    arrays = [prepared.topology.indices, prepared.features, *prepared.topology.edge_data.values()]
    assert len(arrays) == 5
    for array in arrays:
        assert made[array.data_ptr()] == tuple(array.shape)
    assert torch.equal(prepared.topology.indices, add_self_loops(graph).topology.indices)
    assert empty_array((2,), torch.int32, CPU).data_ptr() not in made

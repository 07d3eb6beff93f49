"""Rows of matrices, checks of large arrays, and arrays that are made slab by slab where a caller says."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from sagann.errors import InputError
from sagann.graph import Graph, add_self_loops, normalise, normalise_features, transform
from sagann.graph.checks import (
    check_finite,
    check_offsets,
    numbered,
    slices,
)
from sagann.graph.large_arrays import empty_array, made_by, slabs
from sagann.graph.rows import as_byte_tensor, as_bytes, dense_rows, flat_bytes
from tests.graph.graphs import sparse
from tests.graphs import odd_topologies


@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_a_matrix_is_made_dense_by_slabs_where_large_arrays_lie(num_rows, monkeypatch):
    monkeypatch.setattr("sagann.graph.rows.SLAB_EDGES", 7)
    dense = torch.randn(num_rows, 3).relu()
    made = []

    def allocate(shape, dtype):
        made.append(tuple(shape))
        return torch.full(tuple(shape), torch.nan, dtype=dtype)

    with made_by(allocate):
        assert torch.equal(dense_rows(sparse(dense)), dense)
    assert made == [(num_rows, 3)]


def test_a_matrix_that_is_trained_keeps_its_gradient():
    rows = sparse(torch.eye(3)).requires_grad_()
    dense_rows(rows).sum().backward()
    assert rows.grad is not None


SINGLE = {
    "without a dimension": torch.tensor(7.0),
    "expanded rows": torch.tensor([[7.0]]).expand(5, 5)[2:3, 3:4],
    "trained": torch.tensor(7.0, requires_grad=True),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_number_is_bytes_whatever_its_stride(name):
    tensor = SINGLE[name]
    found = as_byte_tensor(tensor)
    assert found.view(torch.float32).tolist() == [7.0]
    assert found.data_ptr() == tensor.data_ptr()
    assert flat_bytes(tensor).tolist() == found.tolist()
    if tensor.ndim:
        assert as_bytes(tensor).tolist() == [found.tolist()]


TOPOLOGIES = odd_topologies(types=3)
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_slabs_change_no_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = TOPOLOGIES[name]
    graph = Graph(topology=topology, num_edge_types=3)
    whole = normalise(add_self_loops(graph), "symmetric", name="gcn_weight").topology
    monkeypatch.setattr(transform, "slabs", partial(slabs, most_edges=2))
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


WHERE = numbered("file.csv", "row", 10)


def test_offsets_that_fall_between_two_slices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.graph.checks.CHECKED_AT_ONCE", 2)
    assert [(part.start, part.stop) for part in slices(5)] == [(0, 2), (2, 4), (4, 5)]
    assert [(part.start, part.stop) for part in slices(2, row_size=100)] == [(0, 1), (1, 2)]
    check_offsets(torch.tensor([0, 1, 3, 3, 4]), 4, "offsets", where="test")
    with pytest.raises(InputError, match="offsets decrease: 3 then 2 at position 2"):
        check_offsets(torch.tensor([0, 1, 3, 2, 4]), 4, "offsets", where="test")


def test_offsets_whose_differences_overflow_are_found() -> None:
    # Each differs from the one before by 2^62 in 64 bits.
    around = torch.tensor([0, 2**62, -(2**63), -(2**62), 0])
    with pytest.raises(InputError, match=f"offsets decrease: {2**62} then {-(2**63)} at position 1"):
        check_offsets(around, 0, "offsets", where="test")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wrong", [[np.nan], [np.inf], [-np.inf], [np.inf, -np.inf]])
def test_numbers_whose_sum_is_too_large_are_finite_and_others_are_found(
    dtype: torch.dtype, wrong: list[float]
) -> None:
    rows = torch.full((1000, 3), torch.finfo(dtype).max, dtype=dtype)
    check_finite(rows, "feature", where=WHERE)
    check_finite(rows[:0], "feature", where=WHERE)
    for like in (rows, torch.zeros_like(rows)):
        changed = like.clone()
        changed[700, 1 : 1 + len(wrong)] = torch.tensor(wrong, dtype=dtype)
        with pytest.raises(InputError, match=rf"feature is not finite: {wrong[0]} in column 1 .*row 710\)"):
            check_finite(changed, "feature", where=WHERE)

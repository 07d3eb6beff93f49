import pytest
import torch
from hypothesis import given, strategies as st

from sagann.graph.large_arrays import made_by
from sagann.graph.rows import as_byte_tensor, as_bytes, csr_tensor, dense_rows, flat_bytes, gather_ranges, take_rows
from tests.graph.graphs import sparse


@given(st.lists(st.integers(0, 4), max_size=6), st.data())
def test_gather_ranges_equals_plain_python(counts, data):
    offsets = [sum(counts[:i]) for i in range(len(counts) + 1)]
    index = data.draw(st.lists(st.integers(0, len(counts) - 1))) if counts else []
    new, positions = gather_ranges(torch.tensor(offsets), torch.tensor(index, dtype=torch.int64))
    ranges = [list(range(offsets[i], offsets[i + 1])) for i in index]
    assert positions.tolist() == [position for taken in ranges for position in taken]
    assert new.tolist() == [sum(len(r) for r in ranges[:i]) for i in range(len(ranges) + 1)]


@given(st.lists(st.integers(0, 3), max_size=9))
def test_sparse_rows_equal_dense_rows(index):
    dense = torch.tensor([[0.0, 1.0], [0.0, 0.0], [2.0, 3.0], [4.0, 0.0]])
    index = torch.tensor(index, dtype=torch.int64)
    assert torch.equal(take_rows(sparse(dense), index).to_dense(), dense[index])


def test_int32_offsets_stay_int32():
    ids = torch.arange(4, dtype=torch.int32)
    taken = take_rows(csr_tensor(ids, ids[:3], torch.ones(3), num_columns=3), torch.tensor([2]))
    assert taken.crow_indices().dtype == torch.int32
    assert taken.to_dense().tolist() == [[0.0, 0.0, 1.0]]


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


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4,), (2, 3)])
def test_numbers_are_bytes_in_order(shape):
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.int64).reshape(shape)
    assert as_byte_tensor(tensor).view(torch.int64).tolist() == tensor.flatten().tolist()

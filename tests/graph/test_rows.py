import pytest
import torch

from sagann.graph.large_arrays import made_by
from sagann.graph.rows import as_byte_tensor, as_bytes, dense_rows, flat_bytes
from tests.graph.graphs import sparse


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

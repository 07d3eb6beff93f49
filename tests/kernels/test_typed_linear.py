import pytest
import torch

from sagann.errors import InputError
from sagann.kernels.typed_linear import typed_linear
from tests.tolerances import assert_close


@pytest.mark.parametrize("rows", [0, 1, 57])
def test_typed_linear_equals_a_loop_over_rows(rows: int) -> None:
    x = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)
    types = torch.randint(3, (rows,))  # Type 3 never occurs.
    expected = torch.einsum("rf,rfg->rg", x, weight[types])
    actual = typed_linear(x, types, weight)
    assert_close(actual, expected)
    upstream = torch.randn_like(expected)
    for mine, other in zip(
        torch.autograd.grad(actual, [x, weight], upstream),
        torch.autograd.grad(expected, [x, weight], upstream),
        strict=True,
    ):
        assert_close(mine, other)


def test_gradients_of_gradients() -> None:
    x = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    types = torch.tensor([0, 1, 1, 0, 1, 0, 0])
    assert torch.autograd.gradgradcheck(lambda x, weight: typed_linear(x, types, weight), (x, weight))


def test_typed_linear_is_a_well_formed_operator() -> None:
    arguments = (
        torch.randn(6, 2, requires_grad=True),
        torch.arange(6) % 2,
        torch.randn(2, 2, 3, requires_grad=True),
    )
    torch.library.opcheck(torch.ops.sagann.typed_linear.default, arguments)


def test_typed_linear_names_the_row_of_a_bad_type() -> None:
    with pytest.raises(
        InputError,
        match=r"edge type out of range: 7, but there are 2 edge types, numbered from 0 \(in typed_linear, row 1\)",
    ):
        typed_linear(torch.ones(2, 2), torch.tensor([0, 7]), torch.ones(2, 2, 2))


def test_typed_linear_refuses_shapes_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="shapes of a typed linear map do not fit"):
        typed_linear(torch.ones(2, 3), torch.tensor([0, 1]), torch.ones(2, 2, 2))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_typed_linear_refuses_types_that_are_not_integers(dtype: torch.dtype) -> None:
    message = rf"types of a typed linear map are not integers: {dtype}, expected torch.int64 .* \(in typed_linear\)"
    with pytest.raises(InputError, match=message):
        typed_linear(torch.ones(2, 2), torch.tensor([0, 1]).to(dtype), torch.ones(2, 2, 2))

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


ONES, TYPES = torch.ones(2, 2), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("x", "types", "message"),
    [
        (
            ONES,
            torch.tensor([0, 7]),
            r"edge type out of range: 7, but there are 2 edge types, numbered from 0 \(in typed_linear, row 1\)",
        ),
        (torch.ones(2, 3), TYPES, "shapes of a typed linear map do not fit"),
        (
            ONES,
            TYPES.float(),
            r"types of a typed linear map are not integers: torch.float32, expected torch.int64 .* \(in typed_linear\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(x: torch.Tensor, types: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        typed_linear(x, types, torch.ones(2, 2, 2))

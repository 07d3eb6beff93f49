"""Sparse products, and maps by type."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import declare_constant
from sagann.kernels import feature_rows
from sagann.kernels.dense import typed_linear
from sagann.kernels.row_dropout import Mask
from tests.kernels.test_feature_rows import sparse
from tests.tolerances import assert_same_gradients


@pytest.mark.parametrize("rows", [0, 1, 57])
def test_typed_linear_equals_a_loop_over_rows(rows: int) -> None:
    x = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)
    types = torch.randint(3, (rows,))  # Type 3 never occurs.
    expected = torch.einsum("rf,rfg->rg", x, weight[types])
    assert_same_gradients(typed_linear(x, types, weight), expected, [x, weight])


def test_gradients_of_gradients() -> None:
    x = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    types = torch.tensor([0, 1, 1, 0, 1, 0, 0])
    assert torch.autograd.gradgradcheck(lambda x, weight: typed_linear(x, types, weight), (x, weight))


def test_typed_linear_is_a_well_formed_operator() -> None:
    x, weight = torch.randn(6, 2, requires_grad=True), torch.randn(2, 2, 3, requires_grad=True)
    torch.library.opcheck(torch.ops.sagann.typed_linear.default, (x, torch.arange(6) % 2, weight))


ONES, TYPES = torch.ones(2, 2), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("x", "types", "message"),
    [
        (ONES, torch.tensor([0, 7]), r"edge type out of range: 7, but there are 2 edge types, numbered from 0 \(in typed_linear, row 1\)"),
        (torch.ones(2, 3), TYPES, "shapes of a typed linear map do not fit"),
        (ONES, TYPES.float(), r"types of a typed linear map are not integers: torch.float32, expected torch.int64 .* \(in typed_linear\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(x: torch.Tensor, types: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        typed_linear(x, types, torch.ones(2, 2, 2))


@pytest.mark.parametrize("mask", [None, Mask(p=0.3, seed=4, first=77)])
def test_non_zeros_that_are_grouped_in_pieces_give_the_same_gradient(
    mask: Mask | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = sparse(60, 20)
    weight = torch.randn(5, 20, dtype=torch.float64, requires_grad=True)

    def gradient() -> Tensor:
        out = feature_rows.sparse_linear(x, weight, None, mask)
        return torch.autograd.grad(out, weight, torch.arange(300.0, dtype=torch.float64).reshape(60, 5))[0]

    whole = gradient()
    monkeypatch.setattr(feature_rows, "PIECE", 50)
    torch.testing.assert_close(gradient(), whole, rtol=1e-12, atol=1e-12)
    # Groups of constant rows are kept.
    declare_constant(x)
    assert torch.equal(gradient(), whole)


def test_rows_that_are_gone_leave_nothing() -> None:
    weight = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        rows = sparse(9, 6)
        feature_rows.sparse_linear(rows, weight, None, Mask(p=0.5, seed=1, first=0)).sum().backward()
        gone = weakref.ref(rows)
        del rows
        assert gone() is None

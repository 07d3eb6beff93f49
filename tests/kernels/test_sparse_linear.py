"""The gradient of a sparse linear map, whose non-zeros are grouped by feature."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor

from sagann.graph import declare_constant
from sagann.kernels import sparse_linear
from sagann.kernels.row_dropout import Mask
from tests.kernels.test_feature_rows import sparse


@pytest.mark.parametrize("mask", [None, Mask(p=0.3, seed=4, first=77)])
def test_non_zeros_that_are_grouped_in_pieces_give_the_same_gradient(
    mask: Mask | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = sparse(60, 20)
    weight = torch.randn(5, 20, dtype=torch.float64, requires_grad=True)

    def gradient() -> Tensor:
        out = sparse_linear.sparse_linear(x, weight, None, mask)
        return torch.autograd.grad(out, weight, torch.arange(300.0, dtype=torch.float64).reshape(60, 5))[0]

    whole = gradient()
    monkeypatch.setattr(sparse_linear, "PIECE", 50)
    torch.testing.assert_close(gradient(), whole, rtol=1e-12, atol=1e-12)
    # Groups of constant rows are kept.
    declare_constant(x)
    assert torch.equal(gradient(), whole)


def test_rows_that_are_gone_leave_nothing() -> None:
    weight = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        rows = sparse(9, 6)
        sparse_linear.sparse_linear(rows, weight, None, Mask(p=0.5, seed=1, first=0)).sum().backward()
        gone = weakref.ref(rows)
        del rows
        assert gone() is None

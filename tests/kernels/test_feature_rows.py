"""Features that linear maps read as they lie: equal to dropping, and mapping, dense rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.graph.rows import csr_tensor, offsets_of
from sagann.kernels.dense import linear
from sagann.kernels.edge import naive
from sagann.kernels.feature_rows import FeatureRows
from sagann.kernels.row_dropout import Mask, dropout
from tests.kernels.test_row_dropout import MASKS


def sparse(num_rows: int, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows of which a third has values, and some have none."""
    x = torch.randn(num_rows, width, dtype=dtype) * (torch.rand(num_rows, width) < 0.3)
    x[::4] = 0
    rows, columns = x.nonzero().unbind(1)
    offsets = offsets_of(torch.bincount(rows, minlength=num_rows))
    return csr_tensor(offsets, columns, x[rows, columns], num_columns=width)


@pytest.mark.parametrize("layout", ["sparse", "dense"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("num_rows", "width", "out_dim"), [(1, 1, 1), (300, 65, 3), (20, 400, 16)])
def test_a_linear_map_equals_that_of_dense_rows(
    layout: str, mask: Mask | None, num_rows: int, width: int, out_dim: int
) -> None:
    torch.manual_seed(0)
    x = sparse(num_rows, width)
    rows = FeatureRows(x if layout == "sparse" else x.to_dense(), mask=mask)
    weight = torch.randn(out_dim, width, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(out_dim, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(num_rows, out_dim, dtype=torch.float64)
    found, expected = linear(rows, weight, bias), F.linear(rows.dense(), weight, bias)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for gradient, of_dense in zip(
        torch.autograd.grad(found, [weight, bias], upstream),
        torch.autograd.grad(expected, [weight, bias], upstream),
        strict=True,
    ):
        torch.testing.assert_close(gradient, of_dense, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(linear(rows, weight), F.linear(rows.dense(), weight), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_rows", [20, 400])
def test_the_naive_dialect_gives_the_gradient_of_dense_rows(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there are more vertices than features, or fewer."""
    monkeypatch.setattr("sagann.kernels.feature_rows.dialect_for", lambda _: naive)
    x, weight = sparse(num_rows, 50).double(), torch.randn(3, 50, dtype=torch.float64, requires_grad=True)
    found = [
        torch.autograd.grad(linear(rows, weight).square().sum(), weight)[0]
        for rows in (FeatureRows(x), x.to_dense())
    ]
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_dropout_of_sparse_rows_drops_non_zeros() -> None:
    x = sparse(400, 50)
    dropped = dropout(FeatureRows(x), 0.25).dense()
    values, kept = x.to_dense(), dropped != 0
    torch.testing.assert_close(dropped[kept], values[kept] / 0.75)
    assert float(kept.sum() / values.count_nonzero()) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_rows_dropped_twice_are_dropped_with_both_masks(layout: str) -> None:
    x = sparse(400, 50)
    rows = FeatureRows(x if layout == "sparse" else x.to_dense())
    kept = float(dropout(dropout(rows, 0.5), 0.5).dense().count_nonzero() / x.values().numel())
    assert kept == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("layout", ["sparse", "dense"])
@pytest.mark.parametrize("mask", [MASKS[0], MASKS[3], MASKS[6]])
@pytest.mark.parametrize("count", [0, 9])
def test_the_first_rows_are_those_of_all(layout: str, mask: Mask | None, count: int) -> None:
    x = sparse(20, 7)
    rows = FeatureRows(x if layout == "sparse" else x.to_dense(), mask=mask)
    assert torch.equal(rows[:count].dense(), rows.dense()[:count])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_and_returned(dtype: torch.dtype) -> None:
    x = sparse(50, 12, torch.float32)
    half = csr_tensor(x.crow_indices(), x.col_indices(), x.values().to(dtype), num_columns=12)
    weight = torch.randn(5, 12, dtype=dtype, requires_grad=True)
    out = linear(FeatureRows(half), weight)
    assert out.dtype == dtype
    expected = half.to_dense().float() @ weight.detach().float().T
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
    out.sum().backward()
    torch.testing.assert_close(
        weight.grad.float(), half.to_dense().float().sum(0).expand(5, 12), rtol=2e-2, atol=2e-2
    )


def test_the_same_bits_whatever_the_threads(threads: Any) -> None:
    x, weight = sparse(5000, 300, torch.float32), torch.randn(64, 300, requires_grad=True)
    mask = Mask(p=0.5, seed=3)
    found = []
    for count in (1, 2):
        threads(count)
        out = linear(FeatureRows(x, mask=mask), weight)
        found.append((out.detach(), *torch.autograd.grad(out.square().sum(), weight)))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_non_zeros_that_are_changed_are_read_anew() -> None:
    x, weight = sparse(50, 12), torch.randn(5, 12, dtype=torch.float64, requires_grad=True)

    def mapped() -> tuple[Tensor, Tensor]:
        out = linear(FeatureRows(x), weight)
        return out.detach(), torch.autograd.grad(out.sum(), weight)[0]

    before = mapped()
    x.values().mul_(2)
    for now, earlier in zip(mapped(), before, strict=True):
        torch.testing.assert_close(now, 2 * earlier)


def test_a_gradient_of_a_gradient_is_refused() -> None:
    weight = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    out = linear(FeatureRows(sparse(20, 7)), weight).square().sum()
    (gradient,) = torch.autograd.grad(out, weight, create_graph=True)
    with pytest.raises(Exception, match="a gradient of a gradient was asked for"):
        torch.autograd.grad(gradient.sum(), weight)

"""Dropout of rows: the mask is a function of seed, row and feature, whoever computes which rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sagann.kernels.edge.random import random_rows
from sagann.kernels.feature_rows import FeatureRows
from sagann.kernels.row_dropout import Mask, drop, dropout, dropped, rows_of
from tests.cuda import interpreted

MASKS = [
    None,
    Mask(p=0.0, seed=1),
    Mask(p=0.3, seed=2**31 - 1),
    Mask(p=0.5, seed=7, first=1000),
    Mask(p=0.9, seed=7, first=2**32 + 5),
    Mask(p=1.0, seed=1),
    # More ids than rows, in no order, and one of them twice.
    Mask(p=0.4, seed=7, ids=torch.arange(2**33, 2**33 + 200).flip(0) * 3),
    Mask(p=0.4, seed=7, ids=torch.tensor([5, 1, 5, 0]).repeat(30)[::2].repeat(2)),
]
SHAPES = [(7, 15), (3, 16), (50, 65), (5, 3, 7), (11,)]


def expected(x: Tensor, mask: Mask) -> Tensor:
    ids = torch.arange(mask.first, mask.first + len(x)) if mask.ids is None else mask.ids[: len(x)]
    return x * random_rows(ids, tuple(x.shape[1:]), mask.p, 0, mask.seed, x.dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", MASKS[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_equals_its_plain_twin(shape: tuple[int, ...], mask: Mask, dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    assert torch.equal(dropped(x, mask), expected(x, mask))
    out = torch.full_like(x, torch.nan)
    assert dropped(x, mask, out) is out
    assert torch.equal(out, expected(x, mask))


@interpreted
@pytest.mark.parametrize(("shape", "mask"), list(zip(SHAPES, [*MASKS[2:5], *MASKS[6:]], strict=True)))
def test_the_device_kernel_draws_the_same(shape: tuple[int, ...], mask: Mask) -> None:
    gpu = pytest.importorskip("sagann.kernels.row_dropout.gpu")
    x = torch.randn(shape)
    out = torch.full_like(x, torch.nan)
    gpu.drop_rows(x, out, x[0].numel(), mask)
    assert torch.equal(out, expected(x, mask))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_of_rows_that_are_not_contiguous_rounds_once(dtype: torch.dtype) -> None:
    x, mask = torch.randn(19, 40, dtype=dtype).T, Mask(p=0.5, seed=3)
    assert torch.equal(dropped(x, mask), expected(x.float(), mask).to(dtype))


def test_nan_and_infinity_are_multiplied_as_pytorch_does() -> None:
    x, mask = torch.full((50, 20), torch.inf), Mask(p=0.5, seed=3)
    out = dropped(x, mask)
    assert out.isnan().any()
    assert torch.equal(out.isnan(), expected(torch.ones_like(x), mask) == 0)


def test_gradients_of_any_order() -> None:
    x, mask = torch.randn(6, 5, dtype=torch.float64, requires_grad=True), Mask(p=0.4, seed=9)
    assert torch.autograd.gradcheck(lambda x: drop(x, mask), x)
    assert torch.autograd.gradgradcheck(lambda x: drop(x, mask).square(), x)


@pytest.mark.parametrize("p", [0.01, 0.5])
def test_as_many_are_dropped_as_should_be(p: float) -> None:
    x = torch.ones(2000, 300)
    kept = dropped(x, Mask(p=p, seed=5)) > 0
    deviation = (p * (1 - p)) ** 0.5
    # Of the mean of all values, five standard deviations; of single rows and features, eight, for tails are heavy there.
    assert float(kept.double().mean()) == pytest.approx(1 - p, abs=5 * deviation / 600_000**0.5)
    assert (kept.double().mean(1) - (1 - p)).abs().max() < 8 * deviation / 300**0.5
    assert (kept.double().mean(0) - (1 - p)).abs().max() < 8 * deviation / 2000**0.5


@pytest.mark.parametrize("lag", [1, 16])
def test_neighbours_are_independent(lag: int) -> None:
    kept = (dropped(torch.ones(2000, 300), Mask(p=0.5, seed=5)) > 0).double() - 0.5
    for one, other in ((kept[:, lag:], kept[:, :-lag]), (kept[lag:], kept[:-lag])):
        assert float((one * other).mean()) == pytest.approx(0, abs=5 * 0.25 / one.numel() ** 0.5)


def test_seeds_give_independent_masks() -> None:
    x = torch.ones(2000, 300)
    one, other = ((dropped(x, Mask(p=0.5, seed=seed)) > 0).double() - 0.5 for seed in (5, 6))
    assert float((one * other).mean()) == pytest.approx(0, abs=5 * 0.25 / x.numel() ** 0.5)


@pytest.mark.parametrize(("salt", "seed"), [(2, 7), (1, 8)])
def test_salt_and_seed_give_other_values(salt: int, seed: int) -> None:
    first, other = (
        random_rows(torch.arange(100), (8,), 0.5, *given, torch.float32) for given in ((1, 7), (salt, seed))
    )
    assert not torch.equal(first, other)


def test_a_call_draws_its_seed_from_pytorchs_generator() -> None:
    x = torch.ones(40, 30)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)


def test_vertices_keep_their_masks_in_any_mini_batch() -> None:
    x = torch.randn(60, 8)
    with rows_of(slice(0, 60)):
        torch.manual_seed(3)
        whole = dropout(x, 0.5)
    ids = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:40]
    for num_rows in (40, 25):
        with rows_of(ids):
            torch.manual_seed(3)
            found = dropout(x[ids[:num_rows]], 0.5)
        assert torch.equal(found, whole[ids[:num_rows]])
    # Rows that are of no vertex go by position.
    with rows_of(ids):
        torch.manual_seed(3)
        assert torch.equal(dropout(x, 0.5), whole)


def test_vertices_keep_their_masks_in_slabs_of_a_linear_map() -> None:
    x, weight, ids = torch.randn(5000, 33), torch.randn(7, 33), torch.randperm(9000)[:5000]
    torch.manual_seed(3)
    with rows_of(ids):
        found = FeatureRows(x).dropped(0.5).linear(weight)
    torch.manual_seed(3)
    with rows_of(ids):
        torch.testing.assert_close(found, dropout(x, 0.5) @ weight.T)


def test_vertices_keep_their_masks_in_any_interval() -> None:
    x, seeds = torch.randn(60, 8), [11, 12]
    with rows_of(slice(0, 60), seeds):
        whole = [dropout(x, 0.5, number) for number in (0, 1)]
        # Several rows for each vertex: heads, say.
        heads = dropout(x.reshape(120, 4), 0.5)
    assert not torch.equal(whole[0] == 0, whole[1] == 0)
    with rows_of(slice(10, 35), seeds):
        assert torch.equal(dropout(x[10:35], 0.5, 1), whole[1][10:35])
        assert torch.equal(dropout(x[10:35].reshape(50, 4), 0.5), heads[20:70])
    assert torch.equal(whole[0], dropped(x, Mask(p=0.5, seed=11)))


@pytest.mark.parametrize(
    "x", [torch.empty(0, 4), torch.empty(4, 0), torch.tensor(2.0), torch.ones(3, 3, requires_grad=True)]
)
def test_what_has_no_rows_is_pytorchs(x: Tensor) -> None:
    assert dropout(x, 0.5).shape == x.shape


def test_functions_of_pytorch_transform_it() -> None:
    x = torch.ones(8, 8)
    gradient = torch.func.grad(lambda x: dropout(x, 0.5).sum())(x)
    assert set(gradient.unique().tolist()) <= {0.0, 2.0}

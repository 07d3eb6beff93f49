"""Linear maps and ReLU with pooled results, against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.errors import InputError
from sagann.kernels import dense
from tests.tolerances import assert_close, assert_same_gradients


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "SMALLEST_BYTES", 1)
    monkeypatch.setattr(dense, "BLOCK_BYTES", 1024)


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("rows", "width", "out"), [(1003, 7, 5), (64, 8, 3), (9, 40, 3), (0, 4, 2)])
def test_linear_equals_pytorchs(rows: int, width: int, out: int, biased: bool, dtype: torch.dtype) -> None:
    shapes = [(rows, width), (out, width), (out,)]
    leaves = [drawn(*shape, dtype=dtype).requires_grad_() for shape in shapes[: 2 + biased]]
    assert_same_gradients(dense.linear(*leaves), F.linear(*leaves), leaves)


def test_strided_rows_and_expanded_gradients() -> None:
    x, weight = drawn(90, 8)[::2, ::2].requires_grad_(), drawn(3, 8)[:, ::2].requires_grad_()
    assert_same_gradients(dense.linear(x, weight).sum(), F.linear(x, weight).sum(), [x, weight])


def test_other_shapes_are_pytorchs() -> None:
    x, weight = drawn(3, 5, 4), drawn(2, 4)
    assert torch.equal(dense.linear(x, weight), F.linear(x, weight))


def test_a_gradient_of_a_gradient_is_refused() -> None:
    x, weight = drawn(50, 4).requires_grad_(), drawn(3, 4).requires_grad_()
    (grad,) = torch.autograd.grad(dense.linear(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(InputError, match=r"in a compiled layer or a streamed model\)\. .*NaiveEngine"):
        grad.sum().backward()


def test_relu_in_place_equals_pytorchs() -> None:
    x = drawn(40, 6)
    x[0, :3] = torch.tensor([float("nan"), float("inf"), 0.0])
    found = []
    for function in (torch.relu_, dense.relu_):
        leaf = x.clone().requires_grad_()
        operand = leaf * 2
        result = function(operand)
        assert result.data_ptr() == operand.data_ptr()
        found.append((result, *torch.autograd.grad(result, leaf, drawn(40, 6))))
    for expected, ours in zip(*found, strict=True):
        assert_close(ours, expected)

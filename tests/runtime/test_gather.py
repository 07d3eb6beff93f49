"""Passes over rows, which are as PyTorch where these are small, and the divisors of means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sagann.compiler.program import EdgeWork
from sagann.kernels.dialects import dialect_for
from sagann.runtime import gather
from sagann.runtime.gather import compute_rows, divisors
from sagann.runtime.in_memory.engine import CompiledEngine
from tests.compiler.layers import Layer
from tests.tolerances import assert_close


def gate(layer: Layer, vertex: Tensor, accum: Tensor) -> Tensor:
    """Several operators of rows, with a parameter, that make one region."""
    return torch.sigmoid(accum * layer.v) * torch.tanh(vertex) + vertex


def region() -> EdgeWork:
    layer = Layer(vertex=gate).double()
    program = CompiledEngine().program(layer, torch.ones(37, 4, dtype=torch.float64, requires_grad=True))
    assert program is not None
    (work,) = program.vertex.rows
    return work


def test_a_pass_over_large_rows_has_the_numbers_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    work, passes = region(), []
    generator = torch.Generator().manual_seed(0)
    arrays = [
        torch.randn(
            *((37, 4) if side == "dst" else (4,)), dtype=torch.float64, generator=generator
        ).requires_grad_()
        for side in work.sides
    ]
    run = gather.gather_fused

    def counted(*given: Any) -> Tensor:
        passes.append(given)
        return run(*given)

    monkeypatch.setattr(gather, "gather_fused", counted)
    found = []
    for least_bytes, expected in ((37 * 4 * 8 + 1, 0), (37 * 4 * 8, 1)):
        monkeypatch.setattr(gather, "SMALLEST_PASS_BYTES", least_bytes)
        result = compute_rows(work, arrays, dialect_for("cpu", "naive"))
        assert len(passes) == expected
        found.append([result, *torch.autograd.grad(result.square().sum(), arrays)])
    for by_pytorch, by_pass in zip(*found, strict=True):
        assert_close(by_pass, by_pytorch)


@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_divisors_fit_the_rows_that_they_divide(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    degrees, rows = torch.tensor([2, 0, 1, 5]), torch.full(shape, 10.0, dtype=dtype)
    found = rows / divisors(degrees, rows)
    assert found.dtype == dtype
    assert found.shape == rows.shape
    assert found.reshape(4, -1)[:, -1].tolist() == [5.0, 10.0, 10.0, 2.0]
    assert degrees.tolist() == [2, 0, 1, 5]

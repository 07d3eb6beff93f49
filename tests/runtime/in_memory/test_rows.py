"""Large rows of vertices are computed by a pass, small ones by PyTorch, with the same numbers and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sagann.compiler.program import EdgeWork
from sagann.kernels.dialects import dialect_for
from sagann.runtime.in_memory import rows
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.in_memory.rows import compute_rows
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
    gather = rows.gather_fused

    def counted(*given: Any) -> Tensor:
        passes.append(given)
        return gather(*given)

    monkeypatch.setattr(rows, "gather_fused", counted)
    found = []
    for least_bytes, expected in ((37 * 4 * 8 + 1, 0), (37 * 4 * 8, 1)):
        monkeypatch.setattr(rows, "SMALLEST_PASS_BYTES", least_bytes)
        result = compute_rows(work, arrays, dialect_for("cpu", "naive"))
        assert len(passes) == expected
        found.append([result, *torch.autograd.grad(result.square().sum(), arrays)])
    for by_pytorch, by_pass in zip(*found, strict=True):
        assert_close(by_pass, by_pytorch)

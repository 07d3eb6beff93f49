"""A mean divides by in-edges, and by 1 where there are none."""

from __future__ import annotations

import pytest
import torch

from sagann.runtime.in_memory.degrees import divisors


@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_divisors_fit_the_rows_that_they_divide(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    degrees, rows = torch.tensor([2, 0, 1, 5]), torch.full(shape, 10.0, dtype=dtype)
    found = rows / divisors(degrees, rows)
    assert found.dtype == dtype
    assert found.shape == rows.shape
    assert found.reshape(4, -1)[:, -1].tolist() == [5.0, 10.0, 10.0, 2.0]
    assert degrees.tolist() == [2, 0, 1, 5]

"""Tolerances, stated once: relative to the largest entry expected."""

from __future__ import annotations

import torch
from torch import Tensor

RELATIVE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def assert_close(actual: Tensor, expected: Tensor, *, scale: float | None = None) -> None:
    """Equal shapes and dtypes, NaN where NaN is, and no entry off by more than the tolerance of the dtype.

    The tolerance is relative to ``scale``, by default the largest finite entry expected.
    """
    scale = largest(expected) if scale is None else scale
    tolerance = RELATIVE[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def largest(*tensors: Tensor) -> float:
    """The largest finite magnitude in several tensors; 0 where there is none."""
    finite = [tensor.detach()[torch.isfinite(tensor)].abs() for tensor in tensors]
    return max((float(entries.max()) for entries in finite if entries.numel()), default=0.0)

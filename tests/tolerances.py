"""Tolerances, stated once: relative to the largest entry expected."""

from __future__ import annotations

from collections.abc import Sequence

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


def assert_same_gradients(actual: Tensor, expected: Tensor, leaves: Sequence[Tensor]) -> None:
    """Values are close, and so are their gradients of every leaf."""
    assert_close(actual, expected)
    # What is expected of no rows at all may know nothing of the leaves.
    expected = expected + sum(0 * leaf.sum() for leaf in leaves)
    upstream = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(each, leaves, upstream) for each in (actual, expected))
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine, other)


def largest(*tensors: Tensor) -> float:
    """The largest finite magnitude in several tensors; 0 where there is none."""
    finite = [tensor.detach()[torch.isfinite(tensor)].abs() for tensor in tensors]
    return max((float(entries.max()) for entries in finite if entries.numel()), default=0.0)

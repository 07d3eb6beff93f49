"""What batches hold, compared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sagann.runtime.loading import GraphBatch, MiniBatch


def arrays_of(batch: MiniBatch | GraphBatch) -> list[Tensor]:
    arrays: list[Tensor] = []
    batch.mapped(lambda array: arrays.append(array) or array)
    return arrays


def assert_same(first: Sequence[MiniBatch | GraphBatch], second: Sequence[MiniBatch | GraphBatch]) -> None:
    """Require batches whose arrays are equal in values and types."""
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for ours, theirs in zip(arrays_of(one), arrays_of(other), strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)

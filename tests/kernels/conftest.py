"""Poisoned memory for the tests of kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_allocations() -> Iterator[None]:
    """Have every tensor that PyTorch allocates hold NaN or the largest integer until it is written, also outside of the pool."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)

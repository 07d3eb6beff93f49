"""Edge functions run as plain PyTorch, where kernels are not what is tried: to compile one takes half a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sagann.kernels import dialects


def generate_no_kernels() -> None:
    """Have the naive dialect run where none is asked for, in a program of its own."""
    dialects._FASTEST = {**dialects._FASTEST, "cpu": "naive"}
    dialects.dialect_for.cache_clear()


@pytest.fixture(scope="package", autouse=True)
def no_kernels_are_generated() -> Iterator[None]:
    """Have the naive dialect run where none is asked for. tests/exact compares the kernels, in every way to train."""
    before = dialects._FASTEST
    generate_no_kernels()
    yield
    dialects._FASTEST = before
    dialects.dialect_for.cache_clear()


@pytest.fixture
def kernels() -> Iterator[None]:
    """Have kernels run again, for a test that compares in single precision."""
    before = dialects._FASTEST
    dialects._FASTEST = {**before, "cpu": "cpu"}
    dialects.dialect_for.cache_clear()
    yield
    dialects._FASTEST = before
    dialects.dialect_for.cache_clear()

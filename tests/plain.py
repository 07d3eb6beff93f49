"""Edge functions run as plain PyTorch, where kernels are not the subject: compiling one takes half a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sagann.kernels import edge


@contextmanager
def auto_dialect(name: str) -> Iterator[None]:
    """Have "auto" take the dialect of that name on the processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(edge._FASTEST, "cpu", name)
        edge.dialect_for.cache_clear()
        yield
    edge.dialect_for.cache_clear()


@pytest.fixture(scope="package", autouse=True)
def no_kernels_are_generated() -> Iterator[None]:
    """Have the naive dialect run where none is asked for. tests/exact compares the kernels, in every way to train."""
    with auto_dialect("naive"):
        yield


@pytest.fixture
def kernels() -> Iterator[None]:
    """Have kernels run again, for a test that depends on them."""
    with auto_dialect("cpu"):
        yield

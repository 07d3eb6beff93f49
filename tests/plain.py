"""Edge functions run as plain PyTorch, where kernels are not what is tried: to compile one takes half a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sagann.kernels import dialects


@pytest.fixture(scope="package", autouse=True)
def no_kernels_are_generated() -> Iterator[None]:
    """Where no dialect is asked for, it is the naive one. tests/exact compares the kernels, in every way to train."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(dialects._FASTEST, "cpu", "naive")
        dialects.dialect_for.cache_clear()
        yield
    dialects.dialect_for.cache_clear()

"""What is meant for large inputs, done for small ones as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import Tensor

from sagann.kernels import dense, memory
from sagann.runtime import gather


@pytest.fixture(scope="package", autouse=True)
def small_inputs_count_as_large() -> Iterator[None]:
    """Pooled memory, products by blocks and fused rows wherever a test computes anything."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (memory, dense):
            patch.setattr(module, "SMALLEST_BYTES", 1)
        patch.setattr(gather, "SMALLEST_PASS_BYTES", 1)
        patch.setattr(dense, "block_rows", _a_third_of_the_rows)
        yield


def _a_third_of_the_rows(x: Tensor, out_dim: int) -> int:
    """Blocks of a third, and a smaller one of what remains, however many rows there are."""
    return max(1, len(x) // 3)

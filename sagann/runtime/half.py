"""Half precision: a type to store in, not to add up in."""

from __future__ import annotations

from torch import Tensor

from sagann.kernels.edge.builder import arithmetic_dtype


def wide(value: Tensor) -> Tensor:
    """The value in the type that it is computed in: float32 for half precision, else its own."""
    return value.to(arithmetic_dtype(value.dtype))

"""Typed linear: each row through the linear map of its type."""

from sagann.kernels.typed_linear.naive import typed_linear

__all__ = ["typed_linear"]

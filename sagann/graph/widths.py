"""Widths of integers: ids have the narrowest dtype, because ids take most of the memory of a graph."""

from __future__ import annotations

import torch

_INT16_LIMIT, _INT32_LIMIT = 2**15 - 1, 2**31 - 1


def id_dtype(count: int) -> torch.dtype:
    """The narrowest dtype that holds every id, or position, below ``count``: int32 up to 2^31 - 1, else int64."""
    return torch.int32 if count <= _INT32_LIMIT else torch.int64


def local_id_dtype(count: int) -> torch.dtype:
    """The narrowest dtype for ids within an interval: int16 up to 2^15 - 1, else as :func:`id_dtype`."""
    return torch.int16 if count <= _INT16_LIMIT else id_dtype(count)

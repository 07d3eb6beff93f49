"""Widths of integers: 32 bits wherever they suffice, since ids are most of what a graph takes."""

from __future__ import annotations

import torch

_INT32_LIMIT = 2**31 - 1


def id_dtype(count: int) -> torch.dtype:
    """The narrowest dtype that holds every id, or position, below ``count``: int32 up to 2^31 - 1, else int64."""
    return torch.int32 if count <= _INT32_LIMIT else torch.int64

"""A feature store as a user may write one."""

from __future__ import annotations

import torch
from torch import Tensor


class ComputedRows:
    """Rows that are computed when they are asked for: 1 over a number that vertex and column give."""

    def __init__(self, num_rows: int, num_features: int, dtype: torch.dtype = torch.float32) -> None:
        self.num_rows, self.width, self.dtype = num_rows, num_features, dtype
        self.num_features = num_features
        self.scale = 1.0
        self.asked: list[tuple[int, int]] = []
        "Ranges that were read."

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (self.width,)

    def rows(self, ids: Tensor) -> Tensor:
        columns = torch.arange(self.num_features)
        return (self.scale * columns / (1 + ids[:, None] % 7 + columns)).to(self.dtype)

    def slice(self, start: int, stop: int) -> Tensor:
        self.asked.append((start, stop))
        return self.rows(torch.arange(start, stop))

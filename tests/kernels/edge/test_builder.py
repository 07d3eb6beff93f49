from __future__ import annotations

import torch

from sagann.kernels.edge.builder import Builder
from sagann.kernels.edge.function import Input


def builder() -> Builder:
    return Builder([Input(name=name, side="src", shape=(2, 3), dtype=torch.float16) for name in ("x", "y")])


def test_equal_operations_are_one() -> None:
    b = builder()
    assert b.op("add", "x", "y") == b.op("add", "x", "y")
    assert b.op("mul", "x", 2) != b.op("mul", "x", 2.0)
    assert b.op("mul", "x", 0.0) != b.op("mul", "x", -0.0)

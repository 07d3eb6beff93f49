"""The floor's work of operations, counted by hand for a graph of 10 vertices and 30 edges."""

from __future__ import annotations

import pytest

from bench.operations.__main__ import OPERATIONS
from bench.operations.floor import work_of


@pytest.mark.parametrize(
    ("operation", "gathers", "moved"),
    [
        ("sum", [8, 8], 0),
        ("weighted-sum", [8, 8], 2 * 30),
        ("max", [8], 5 * 10 * 8),
        ("gated", [8, 8, 8, 8], 5 * 10 * 8),
        ("softmax", [8, 4, 8, 12], 2 * 30 * 4 + 2 * 10 * 8),
    ],
)
def test_every_operation(operation: str, gathers: list[int], moved: int) -> None:
    assert operation in OPERATIONS
    work = work_of(operation, vertices=10, edges=30, features=8, heads=4)
    assert work.products == []
    assert work.gathers == gathers
    assert work.moved_bytes == 4 * moved

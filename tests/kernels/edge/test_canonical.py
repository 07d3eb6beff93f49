"""Functions that differ in names alone are one function by their canonical names."""

from __future__ import annotations

import torch

from sagann.kernels.edge.builder import Builder
from sagann.kernels.edge.canonical import canonical_names, renamed
from sagann.kernels.edge.function import EdgeFunction, Input, Output, verify


def weighted(source: str, weight: str, *, unread: int = 0) -> EdgeFunction:
    """A sum of weighted rows. Operations that no output reads change the numbers in the names of later ones."""
    make = Builder(
        [
            Input(name=source, side="src", shape=(3,), dtype=torch.float32),
            Input(name=weight, side="edge", shape=(), dtype=torch.float32),
        ]
    )
    for number in range(unread):
        make.op("mul", source, float(number + 2))
    product = make.op("exp", make.op("mul", source, weight))
    return make.build([Output(reduce="sum", values=(product,))], "dst")


def test_names_state_side_or_operation_and_place() -> None:
    function = weighted("hidden", "norm", unread=2)
    assert list(canonical_names(function)) == [value.name for value in function.values]
    assert list(canonical_names(function).values()) == ["src_0", "edge_1", "mul_2", "exp_3"]


def test_functions_that_differ_in_names_alone_become_equal() -> None:
    first, second = weighted("hidden", "norm"), weighted("exp_3", "src_0", unread=3)
    one, other = (renamed(each, canonical_names(each)) for each in (first, second))
    verify(one)
    for part in ("inputs", "ops", "outputs", "at"):
        assert getattr(one, part) == getattr(other, part)
    assert first.ops != second.ops


def test_sides_stay_apart() -> None:
    function = weighted("x", "w")
    names = canonical_names(function)
    assert [(given.name, given.side) for given in renamed(function, names).inputs] == [
        ("src_0", "src"),
        ("edge_1", "edge"),
    ]

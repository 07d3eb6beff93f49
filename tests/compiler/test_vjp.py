"""The derived backward takes few passes, which read what they need."""

from __future__ import annotations

import pytest

from sagann.compiler.vjp import backward_passes
from sagann.kernels.edge.function import EdgeFunction
from sagann.nn import GAT
from tests.compiler.layers import compiled_right
from tests.kernels.edge.functions import Builder


def pair() -> EdgeFunction:
    make = Builder()
    src, dst, weight, scale = (
        make.input(side, shape) for side, shape in (("src", (4,)), ("dst", (4,)), ("edge", ()), ("param", (4,)))
    )
    value = make.op("mul", make.op("mul", src, dst), make.op("mul", make.op("tanh", weight), scale))
    return make.function(("sum", value))  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        ((0,), [("src", ["sum"])]),
        ((1,), [("dst", ["sum"])]),
        ((0, 1), [("dst", ["sum"]), ("src", ["sum"])]),
        ((0, 2, 3), [("src", ["sum", "edge", "total"])]),
        ((0, 1, 2, 3), [("dst", ["sum", "edge", "total"]), ("src", ["sum"])]),
        ((2,), [("dst", ["edge"])]),
        ((), []),
    ],
)
def test_as_few_passes_as_there_are_sides(wanted: tuple[int, ...], passes: list[tuple[str, list[str]]]) -> None:
    function = pair()
    made = backward_passes(function, [function.inputs[index].name for index in wanted])
    assert [(step.function.at, [output.reduce for output in step.function.outputs]) for step in made] == passes


def test_narrow_gradients_of_wide_rows_are_handed_on() -> None:
    function = compiled_right(GAT(4, 32, num_heads=3).double(), dialect="naive").edges.function
    made = backward_passes(function, [given.name for given in function.inputs if given.side != "edge"])
    assert [(step.function.at, [output.reduce for output in step.function.outputs]) for step in made] == [
        ("src", ["sum", "sum", "edge"]),
        ("dst", ["sum"]),
    ]
    (handed,) = made[1].function.inputs
    assert (handed.side, handed.shape) == ("edge", (3,))
    assert made[0].results[-1] == handed.name


def test_an_input_that_only_comparisons_read_has_no_gradient() -> None:
    make = Builder()
    src, dst = make.input("src", (3,)), make.input("dst", (3,))
    function = make.function(("sum", make.op("where", make.op("gt", src, dst), dst, 0.5)))
    assert backward_passes(function, [src]) == ()

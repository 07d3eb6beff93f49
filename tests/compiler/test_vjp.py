"""The derived backward against autograd through the plain pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import fx

from sagann.compiler.program import EdgeWork, Stage
from sagann.compiler.vjp import Backward, backward_passes
from sagann.kernels.accumulators import ACCUMULATORS, Gathering, gathering
from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction, Output
from sagann.runtime.in_memory.edge_pass import gather_fused
from tests.graphs import odd_topologies
from tests.kernels.edge.functions import Builder, arrays_of, attention, functions, gated
from tests.tolerances import assert_close, largest

TOPOLOGIES = odd_topologies()
REDUCTIONS: list[Any] = ["sum", "max", "min", "softmax", "edge"]


EDGE_ROWS = Gathering(messages=((replace(ACCUMULATORS["concat"], is_sized=False),),))
"Rows of edges as they are, without padding."


def reduced(function: EdgeFunction, reduce: Any) -> EdgeFunction:
    """The same function with one output, reduced at the destinations."""
    values = function.outputs[0].values
    if reduce == "softmax" and len(values) == 1:
        reduce = "sum"
    return EdgeFunction(
        inputs=function.inputs,
        ops=function.ops,
        outputs=(Output(reduce=reduce, values=values if reduce == "softmax" else values[-1:]),),
        at="dst",
    )


def work(function: EdgeFunction) -> EdgeWork:
    names = tuple(given.name for given in function.inputs)
    stage = Stage(module=fx.GraphModule({}, fx.Graph()), inputs=names, outputs=("message",))
    return EdgeWork(
        stage=stage,
        sides=tuple(given.side for given in function.inputs),
        gathering=EDGE_ROWS if function.outputs[0].reduce == "edge" else gathering(function.outputs[0].reduce),
        dtype=torch.float64,
        function=function,
        why_not="",
        backward=Backward(function),
        tensor_bytes=0,
        random=function.random,
        extremum_of_source=False,
    )


def check(function: EdgeFunction, name: str, dialect: Any = naive) -> None:
    topology = TOPOLOGIES[name]
    leaves = {name: array.requires_grad_() for name, array in arrays_of(function, topology).items()}
    torch.manual_seed(0)
    actual = gather_fused(work(function), topology, list(leaves.values()), dialect)
    torch.manual_seed(0)
    seed = int(torch.randint(2**31, ())) if function.random else 0
    expected = naive.run(function, topology, leaves, seed=seed)[0]
    assert_close(actual, expected)
    upstream = torch.randn_like(expected)
    if not expected.requires_grad:
        return
    mine = torch.autograd.grad(actual, list(leaves.values()), upstream, materialize_grads=True)
    other = torch.autograd.grad(expected, list(leaves.values()), upstream, materialize_grads=True)
    for a, b in zip(mine, other, strict=True):
        # Some gradients are zero but for rounding (the softmax of equal values), so all are held to the largest.
        assert_close(a, b, scale=largest(*other, expected, upstream))


@settings(max_examples=50)
@given(functions(), st.sampled_from(REDUCTIONS), st.sampled_from(sorted(TOPOLOGIES)))
def test_random_functions(function: EdgeFunction, reduce: Any, name: str) -> None:
    check(reduced(function, reduce), name)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_known_functions(name: str) -> None:
    check(reduced(gated(7, torch.float64), "sum"), name)
    check(reduced(attention(3, 4, torch.float64), "softmax"), name)


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


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_gradients_that_are_handed_on(name: str) -> None:
    check(reduced(attention(3, 32, torch.float64), "softmax"), name)


def test_an_input_that_only_comparisons_read_has_no_gradient() -> None:
    make = Builder()
    src, dst = make.input("src", (3,)), make.input("dst", (3,))
    function = make.function(("sum", make.op("where", make.op("gt", src, dst), dst, 0.5)))
    assert backward_passes(function, [src]) == ()

"""Edge functions that do not hold together are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.kernels.edge.function import EdgeFunction, Input, Op, Output, read_names, shape_of, verify

X = Input(name="x", side="src", shape=(2, 3), dtype=torch.float32)
SCORE = Input(name="score", side="edge", shape=(3,), dtype=torch.float32)
TWICE = Op(name="twice", op="add", args=("x", "x"), shape=(2, 3), dtype=torch.float32)
FUNCTION = EdgeFunction(
    inputs=(X, SCORE), ops=(TWICE,), outputs=(Output(reduce="sum", values=("twice",)),), at="dst"
)


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (X, X)},
        {"ops": (replace(TWICE, op="twist"),)},
        {"ops": (replace(TWICE, args=("x", "later")),)},
        {"ops": (replace(TWICE, shape=(3,)),)},
        {"ops": (replace(TWICE, op="lt"),)},
        {"outputs": (Output(reduce="sum", values=("y",)),)},
        {"outputs": (Output(reduce="sum", values=("x", "twice")),)},
        {"outputs": (Output(reduce="softmax", values=("score", "x")),)},
    ],
    ids=str,
)
def test_a_broken_invariant_is_found(changes: dict[str, object]) -> None:
    verify(FUNCTION)
    with pytest.raises((AssertionError, KeyError)):
        verify(replace(FUNCTION, **changes))


@pytest.mark.parametrize(
    ("op", "attrs", "stated", "shape"),
    [
        ("permute", {"dims": (1, 0)}, (), (3, 2)),
        ("slice", {"dim": 1, "start": 1, "step": 1}, (2, 2), (2, 2)),
        ("slice", {"dim": 1, "start": 2, "step": 1}, (2, 2), (2, -1)),
        ("cat", {"dim": 1}, (), (2, 3)),
        ("sum", {"dims": (0,)}, (), (3,)),
        ("reshape", {}, (6,), (6,)),
        ("reshape", {}, (7,), (2, 3)),
        ("broadcast", {}, (4, 2, 3), (4, 2, 3)),
        ("edge_id", {}, (), ()),
    ],
)
def test_shapes_follow_from_arguments(op: str, attrs: dict, stated: tuple, shape: tuple) -> None:
    assert shape_of(op, [(2, 3)], attrs, stated) == shape


def test_names_of_several_outputs_are_numbered() -> None:
    largest = Output(reduce="max", values=("x",))
    assert read_names(FUNCTION) == [["grad"]]
    assert read_names(replace(FUNCTION, outputs=(*FUNCTION.outputs, largest))) == [
        ["grad_0"],
        ["grad_1", "argument_1"],
    ]

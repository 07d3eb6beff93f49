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
    ("changes", "message"),
    [
        ({"inputs": (X, X)}, "'x' is defined twice"),
        ({"ops": (replace(TWICE, op="twist"),)}, "'twice': unknown op 'twist'"),
        ({"ops": (replace(TWICE, args=("x", "later")),)}, "'twice' reads 'later', which does not stand before it"),
        ({"ops": (replace(TWICE, shape=(3,)),)}, r"'twice' = add: shape \[3\], expected \[2, 3\]"),
        ({"ops": (replace(TWICE, op="lt"),)}, "'twice' = lt: dtype torch.float32, expected torch.bool"),
        ({"outputs": (Output(reduce="sum", values=("y",)),)}, "output reads the undefined value 'y'"),
        ({"outputs": (Output(reduce="sum", values=("x", "twice")),)}, "'sum' cannot take 2 values"),
        (
            {"outputs": (Output(reduce="softmax", values=("score", "x")),)},
            r"score \[3\] does not begin value \[2, 3\]",
        ),
    ],
    ids=str,
)
def test_a_broken_invariant_is_named(changes: dict[str, object], message: str) -> None:
    verify(FUNCTION)
    with pytest.raises(ValueError, match=message):
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

"""Lines that both dialects generate."""

from __future__ import annotations

import pytest
import torch

from sagann.kernels.edge.lines import float_text, mention, operand_kind
from tests.kernels.edge.functions import Builder


@pytest.mark.parametrize(
    ("line", "found"), [("x = other + 1", True), ("x = v_other", False), ("another = 1", False)]
)
def test_a_longer_name_is_another_variable(line: str, found: bool) -> None:
    assert mention(["edge = 0", line], "other") == found


@pytest.mark.parametrize("number", [0.1, -1e300, float("inf"), -float("inf")])
def test_numbers_are_written_exactly(number: float) -> None:
    assert eval(float_text(number)) == number


def test_kinds_of_operands() -> None:
    make = Builder(torch.float64)
    wide, mask = make.input("src", ()), make.input("edge", (), torch.bool)
    kind = make.input("edge", (), torch.int32)
    ops = {
        "b1": make.op("and", mask, kind),
        "i4": make.op("eq", kind, 3),
        "f8": make.op("where", mask, wide, 0.0),
    }
    function = make.function(("sum", ops["f8"]))
    assert {name: operand_kind(function, function.value(op)) for name, op in ops.items()} == {n: n for n in ops}

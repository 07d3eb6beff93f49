"""Traces with two numbers of rows may differ in sizes alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from sagann.compiler.size_check import OTHER_ROWS, check_sizes
from sagann.compiler.trace import ROWS, TraceError, fake_rows, make_graph


def traced(function: Callable[[Tensor], Tensor], num_rows: int) -> fx.GraphModule:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    return make_graph(fake, function, fake_rows(fake, torch.empty(1, 4), num_rows))


def check(function: Callable[[Tensor], Tensor]) -> None:
    check_sizes(traced(function, ROWS), traced(function, OTHER_ROWS))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(2 * len(x), 2).sum(1),
        lambda x: torch.zeros(len(x), 3) + x[:, :3],
        lambda x: x * float("nan"),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, float("nan")]),
    ],
)
def test_sizes_and_constants_pass(function: Callable[[Tensor], Tensor]) -> None:
    check(function)


@pytest.mark.parametrize("function", [lambda x: x / (len(x) - 1), lambda x: x + torch.tensor(1.0 / len(x))])
def test_a_number_that_depends_on_the_number_of_rows_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(TraceError, match=r"operator \S+ reads a number that depends on the number of vertices"):
        check(function)


def test_another_operator_is_refused() -> None:
    with pytest.raises(TraceError, match="something else when it is traced again"):
        check(lambda x: x.relu() if len(x) == ROWS else x.tanh())

"""Runs on made-up rows: what differs between them is found, whatever records the operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sagann.saga.row_runs import NUM_ROWS, Run, Step, compare_runs

X = torch.arange(2.0 * NUM_ROWS).view(NUM_ROWS, 2)


def compared(
    function: Callable[[Tensor], Tensor], *, of_rows: bool = True, draws: bool = False, x: Tensor = X, dim: int = 0
) -> str:
    """How the function, recorded as one operator, breaks the rule; empty if it does not."""

    def execute(run: Run, given: list[Tensor]) -> Tensor:
        result = function(*given)
        run.add(Step("operator", "line", [result], of_rows), draws=draws)
        return result

    _, difference = compare_runs(execute, [x], [dim], 1e-4)
    return "" if difference is None else difference[0]


def test_rows_may_stand_in_any_dimension() -> None:
    assert compared(lambda x: x + 1) == ""
    assert compared(lambda x: x.t()) == ""
    assert compared(lambda x: x.t() + 1, x=X.t().contiguous(), dim=1) == ""


def test_several_entries_of_a_row_may_stand_together_or_apart() -> None:
    assert compared(lambda x: x.reshape(-1)) == ""
    assert compared(lambda x: x.t().reshape(-1)) == ""
    assert compared(lambda x: x.flip(0).reshape(-1)) == "mixes"


@pytest.mark.parametrize(
    "mix", [lambda x: x.sum(0), lambda x: x - x.amax(0), lambda x: x.cumsum(0), lambda x: x @ x.t()]
)
def test_rows_that_read_others_differ(mix: Callable[[Tensor], Tensor]) -> None:
    assert compared(mix) == "mixes"


def test_results_without_rows_are_not_compared() -> None:
    assert compared(lambda x: torch.tensor(float(len(x))), of_rows=False) == ""


def test_random_results_are_those_of_the_whole_run() -> None:
    assert compared(torch.rand_like, draws=True) == ""
    assert compared(torch.rand_like) == "mixes"


def test_another_number_of_operators_is_a_branch() -> None:
    def execute(run: Run, given: list[Tensor]) -> None:
        for _ in range(1 + (len(given[0]) == NUM_ROWS)):
            run.add(Step("operator", "line", [given[0]], True), draws=False)

    _, difference = compare_runs(execute, [X], [0], 1e-4)
    assert difference is not None
    assert difference[0] == "branches"


def test_what_the_caller_owns_may_not_be_overwritten() -> None:
    def execute(run: Run, given: list[Tensor]) -> None:
        run.add(Step("mul_", "line", [given[0].mul_(2)], True, "its input"), draws=False)

    before = X.clone()
    _, difference = compare_runs(execute, [X], [0], 1e-4)
    assert difference is not None
    assert (difference[0], difference[1].overwrites) == ("overwrites", "its input")
    assert torch.equal(X, before)

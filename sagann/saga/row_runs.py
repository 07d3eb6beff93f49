"""Row runs: whether a function's operators treat rows independently, seen on made-up rows.

The function runs on a handful of rows, then on parts of them. Every operator is recorded. Row i of every result must be
the same in all runs. An operator that reduces over rows, shifts them, or normalises across them gives other rows; the
first such operator is the culprit. There is no table of operators, so the check holds for any of PyTorch's. Random
operators (dropout) give the values of the first run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

T = TypeVar("T")
NUM_ROWS = 7
"Number of made-up rows."
PARTS = ((5, 2, 0), (6, 4, 3, 1))
"Rows of the later runs. The parts share no row and are out of order: no reduction over rows gives the same on all three."
TOLERANCES = {torch.float64: 1e-9, torch.float16: 2e-2, torch.bfloat16: 1e-1}
DEFAULT_TOLERANCE = 1e-4
"Runs on other rows differ by rounding alone: relative to the largest entry."

_UNINITIALISED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
READS_NO_VALUES = _UNINITIALISED | {"new_zeros", "new_ones", "new_full"}
"Operators that take a tensor for its dtype and device alone."


How = Literal["branches", "mixes", "overwrites"]
"How a step breaks the rule: another operator runs on a part, rows are mixed, or a tensor of the caller is overwritten."


@dataclass(slots=True)
class Step:
    """One operator of a run."""

    operator: str
    "Name of the operator."
    line: str
    "The user's line that calls the operator."
    results: list[Tensor]
    "Results of the operator."
    of_rows: bool
    "Whether the results must have a row for each row of the run."
    overwrites: str = ""
    "Tensor of the caller that the operator changes in place; empty if there is none."


def compare_runs(
    execute: Callable[[Run, list[Tensor]], T],
    inputs: Sequence[Tensor],
    dims: Sequence[int | None],
    tolerance: float,
) -> tuple[T, tuple[How, Step] | None]:
    """The function's result for all rows, and the first step that breaks the rule on all rows or on parts of them.

    ``execute`` runs the function on inputs, of which dimension ``dims`` holds :data:`NUM_ROWS` rows each, or a multiple of them (None: no rows),
    and records its operators. ``tolerance`` is of rounding, relative to the largest entry.
    """
    whole = Run()
    # Copies, so that a function that overwrites its input spoils no later run.
    output = execute(whole, [tensor.clone() for tensor in inputs])
    device = inputs[0].device if inputs else None
    for part in PARTS:
        run = Run(whole, torch.tensor(part, device=device))
        execute(
            run,
            [each if dim is None else run.part_of(each, dim) for each, dim in zip(inputs, dims, strict=True)],
        )
        if (difference := run.first_difference(tolerance)) is not None:
            return output, difference
    return output, next((("overwrites", step) for step in whole.steps if step.overwrites), None)


class Run:
    """The operators of a function that runs on all made-up rows; or on some ``rows`` of those of the run ``whole``."""

    def __init__(self, whole: Run | None = None, rows: Tensor | None = None) -> None:
        self.steps: list[Step] = []
        self._whole = whole
        self._rows = torch.arange(NUM_ROWS) if rows is None else rows

    def add(self, step: Step, *, draws: bool) -> None:
        """Record an operator that has just run; in a run on a part, random results get the values of the whole run."""
        number, whole = len(self.steps), [] if self._whole is None else self._whole.steps
        if number < len(whole) and (draws or step.operator in _UNINITIALISED):
            for now, before in zip(step.results, whole[number].results, strict=False):
                if now.shape == before.shape:
                    now.copy_(before)
                elif (part := next(self._parts_of(before, now.shape), None)) is not None:
                    now.copy_(part)
        # Copies: the next operator may write in place.
        step.results = [tensor.detach().clone() for tensor in step.results]
        self.steps.append(step)

    def first_difference(self, tolerance: float) -> tuple[How, Step] | None:
        """The first step that differs from the whole run."""
        assert self._whole is not None
        whole = self._whole.steps
        for step, again in zip(whole, self.steps, strict=False):
            if step.operator != again.operator:
                return "branches", step
            pairs = zip(step.results, again.results, strict=True)
            if step.of_rows and not all(self._agree(*pair, tolerance) for pair in pairs):
                return "mixes", step
        if len(whole) == len(self.steps):
            return None
        return "branches", max(whole, self.steps, key=len)[min(len(whole), len(self.steps))]

    def _agree(self, full: Tensor, part: Tensor, tolerance: float) -> bool:
        if full.shape == part.shape:
            # Without a dimension for the rows, only an empty result depends on none of them.
            return full.numel() == 0
        return any(_close(expected, part, tolerance) for expected in self._parts_of(full, part.shape))

    def part_of(self, full: Tensor, dim: int) -> Tensor:
        """The part's rows among all made-up rows, which are dimension ``dim`` of ``full``, or a multiple of them."""
        return full.unflatten(dim, (NUM_ROWS, -1)).index_select(dim, self._rows).flatten(dim, dim + 1)

    def _parts_of(self, full: Tensor, shape: torch.Size) -> Iterator[Tensor]:
        """The part's rows as a tensor of ``shape``, for each way in which one dimension can hold the rows."""
        differing = [dim for dim in range(full.ndim) if full.ndim == len(shape) and full.shape[dim] != shape[dim]]
        if len(differing) != 1:
            return
        dim = differing[0]
        per_row, rest = divmod(full.shape[dim], NUM_ROWS)
        if rest or shape[dim] != per_row * len(self._rows):
            return
        yield self.part_of(full, dim)
        yield full.unflatten(dim, (per_row, NUM_ROWS)).index_select(dim + 1, self._rows).flatten(dim, dim + 1)


def tensors_in(values: object) -> list[Tensor]:
    """The tensors among arguments or results."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def tolerance_of(dtype: torch.dtype) -> float:
    """Relative difference that rounding explains."""
    return TOLERANCES.get(dtype, DEFAULT_TOLERANCE) if dtype.is_floating_point else 0.0


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    tolerance = max(tolerance, TOLERANCES.get(a.dtype, DEFAULT_TOLERANCE))
    finite = a[torch.isfinite(a)].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def draws_alone(operator: object) -> bool:
    """Whether an operator draws random numbers, each by itself. Attention may drop some, but reads other rows too."""
    is_random = torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())
    return is_random and "attention" not in str(operator)


def sampled_rows(data: Tensor) -> Tensor:
    """:data:`NUM_ROWS` rows from all over ``data``; zeros where it is empty."""
    if not len(data):
        return data.new_zeros(NUM_ROWS, *data.shape[1:])
    return data[torch.arange(NUM_ROWS, device=data.device) * (len(data) - 1) // (NUM_ROWS - 1)]


def last_positive(rows: Tensor) -> Tensor:
    """Make the last of several features positive, in place: results that are NaN or 0 for negative numbers tell nothing."""
    if rows.shape[-1] > 1:
        rows[..., -1] = rows[..., -1].abs() + 0.1
    return rows

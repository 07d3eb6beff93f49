"""Partial results of cut rows put together on the CPU, against the same in PyTorch, one after the other."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sagann.kernels.edge.cpu.merge import merge_slots
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.kinds import merged_results, results_of
from sagann.kernels.edge.work import Work
from tests.kernels.edge.functions import Builder

NUMBERS = [0.0, -1.5, 2.0, 3.25, float("nan"), float("inf"), -float("inf")]
NAN, LOWEST = float("nan"), torch.finfo(torch.float32).min
SCALES = torch.tensor(
    [[-float("inf"), 0], [LOWEST, 0], [LOWEST, 1], [-1e9, 5], [-2, 1], [0.5, 3], [1e9, 2], [float("inf"), NAN]]
)
"Largest score and denominator of a softmax: of no edges, of scores that are all -inf, of numbers, of infinity."
NO_EDGES = 0
ROWS = [4, 1, 2]
"The rows that are cut, of five."


def reduced_in_every_way() -> EdgeFunction:
    """With heads, and outputs between that are not merged."""
    make = Builder(torch.float32)
    value, score = make.input("src", (2, 3)), make.input("src", (2,))
    reduced = [(reduce, value) for reduce in ("sum", "edge", "max", "total", "min", "product")]
    return make.function(*reduced, ("softmax", score, value))


def parts_of(function: EdgeFunction, num_rows: int, first_edge: int, generator: torch.Generator) -> list[Tensor]:
    """Any parts: of no edges, of NaN, of scores that are all -inf."""
    parts = []
    for result in results_of(function):
        shape = (num_rows, *result.shape)
        if result.dtype is None:
            ids = first_edge + torch.randint(-4, 9, shape, generator=generator)
            parts.append(torch.where(ids < first_edge, -1, ids))
        else:
            parts.append(torch.tensor(NUMBERS, dtype=result.dtype)[torch.randint(7, shape, generator=generator)])
    mean, top, weight = parts[-3:]
    kind = torch.randint(len(SCALES), top.shape, generator=generator)
    top.copy_(SCALES[:, 0][kind])
    weight.copy_(SCALES[:, 1][kind])
    mean.copy_(torch.where(kind[..., None] == NO_EDGES, 0, torch.where(weight[..., None] > 0, mean, torch.nan)))
    return parts


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=3), continued=st.booleans(), seed=st.integers(0, 1 << 32)
)
def test_any_parts(sizes: list[int], continued: bool, seed: int) -> None:
    function, generator = reduced_in_every_way(), torch.Generator().manual_seed(seed)
    indptr = np.cumsum([0, *sizes])
    rows, runs = np.array(ROWS), np.zeros(1, np.int64)
    work = Work(items=np.empty((0, 5), np.int64), split_rows=rows, split_indptr=indptr, runs=runs)
    outs, slots = parts_of(function, 5, 0, generator), parts_of(function, int(indptr[-1]), 100, generator)
    expected = [out.clone() for out in outs]
    for reduction, here in merged_results(function):
        for row, first, last in zip(ROWS, indptr[:-1], indptr[1:], strict=True):
            into = [
                out[row : row + 1].clone() if continued else slot[first : first + 1].clone()
                for out, slot in zip(outs[here], slots[here], strict=True)
            ]
            for slot in range(first + (not continued), last):
                reduction.merge(into, [part[slot : slot + 1] for part in slots[here]])
            for out, merged in zip(expected[here], into, strict=True):
                out[row : row + 1] = merged
    merge_slots(function, outs, slots, work, continued=continued)
    for actual, wanted in zip(outs, expected, strict=True):
        torch.testing.assert_close(actual, wanted, equal_nan=True)

"""Checks treat tensors and NumPy arrays alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sagann.errors import DatasetError, InputError
from sagann.graph.checks import (
    LARGEST_TYPE,
    check_columns,
    check_finite,
    check_ids,
    check_labels,
    check_offsets,
    check_types,
    first_true,
    numbered,
    slices,
)

WHERE = numbered("file.csv", "row", 10)
MAKERS = pytest.mark.parametrize("make", [np.array, torch.tensor])


@MAKERS
def test_the_first_offending_row_is_named(make: Callable[[Any], Any]) -> None:
    assert first_true(make([False, False, True, True])) == 2
    assert first_true(make([[False, False], [False, True], [True, False]])) == 1
    assert first_true(make([[False]])) is None
    with pytest.raises(
        DatasetError, match=r"source id out of range: 5, but there are 5 vertices.*file\.csv, row 11\)"
    ):
        check_ids(make([4, 5, -1]), 5, "source", where=WHERE, error=DatasetError)
    with pytest.raises(InputError, match=r"-1, but ids start at 0 .*row 12\)"):
        check_ids(make([4, 5, -1]), None, "source", where=WHERE)
    with pytest.raises(InputError, match=r"feature column out of range: 3, but there are 3 features"):
        check_columns(make([0, 3]), 3, where=WHERE)
    with pytest.raises(InputError, match=r"label out of range: -2, but -1 is for unknown .*row 11\)"):
        check_labels(make([-1, -2]), None, where=WHERE)
    with pytest.raises(InputError, match=r"label out of range: \[0, 2\], but multi-label rows hold 0 and 1"):
        check_labels(make([[0, 1], [0, 2]]), 2, where=WHERE)


@MAKERS
def test_types_without_a_stated_number_fit_32_bits(make: Callable[[Any], Any]) -> None:
    check_types(make([0, LARGEST_TYPE]), None, where=WHERE)
    with pytest.raises(InputError, match=f"{LARGEST_TYPE + 1}, but types go from 0 to {LARGEST_TYPE}"):
        check_types(make([0, LARGEST_TYPE + 1]), None, where=WHERE)
    with pytest.raises(InputError, match="1, but there are 1 edge types"):
        check_types(make([0, 1]), 1, where=WHERE)


def test_offsets_that_fall_between_two_slices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.graph.checks.CHECKED_AT_ONCE", 2)
    assert [(part.start, part.stop) for part in slices(5)] == [(0, 2), (2, 4), (4, 5)]
    assert [(part.start, part.stop) for part in slices(2, row_size=100)] == [(0, 1), (1, 2)]
    check_offsets(torch.tensor([0, 1, 3, 3, 4]), 4, "offsets", where="test")
    with pytest.raises(InputError, match="offsets decrease: 3 then 2 at position 2"):
        check_offsets(torch.tensor([0, 1, 3, 2, 4]), 4, "offsets", where="test")


def test_offsets_whose_differences_overflow_are_found() -> None:
    # Each differs from the one before by 2^62 in 64 bits.
    around = torch.tensor([0, 2**62, -(2**63), -(2**62), 0])
    with pytest.raises(InputError, match=f"offsets decrease: {2**62} then {-(2**63)} at position 1"):
        check_offsets(around, 0, "offsets", where="test")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wrong", [[np.nan], [np.inf], [-np.inf], [np.inf, -np.inf]])
def test_numbers_whose_sum_is_too_large_are_finite_and_others_are_found(
    dtype: torch.dtype, wrong: list[float]
) -> None:
    rows = torch.full((1000, 3), torch.finfo(dtype).max, dtype=dtype)
    check_finite(rows, "feature", where=WHERE)
    check_finite(rows[:0], "feature", where=WHERE)
    for like in (rows, torch.zeros_like(rows)):
        changed = like.clone()
        changed[700, 1 : 1 + len(wrong)] = torch.tensor(wrong, dtype=dtype)
        with pytest.raises(InputError, match=rf"feature is not finite: {wrong[0]} in column 1 .*row 710\)"):
            check_finite(changed, "feature", where=WHERE)

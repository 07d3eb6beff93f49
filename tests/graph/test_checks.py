"""Checks treat tensors and NumPy arrays alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sagann.errors import InputError
from sagann.graph.checks import (
    check_finite,
    check_offsets,
    numbered,
    slices,
)

WHERE = numbered("file.csv", "row", 10)


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

"""Copies of single rows."""

from __future__ import annotations

import numpy as np
import pytest

from sagann.jit import compiled
from sagann.storage.row_copies import copy_row


@compiled()
def copied(source, row, target, place):  # type: ignore[no-untyped-def]
    copy_row(source, row, target, place)


@pytest.mark.parametrize("row_bytes", [1, 3, 8, 513])
@pytest.mark.parametrize("flat", [False, True])
def test_one_row_is_copied_and_no_other_byte(row_bytes: int, flat: bool) -> None:
    source = np.random.default_rng(0).integers(256, size=(5, row_bytes), dtype=np.uint8)
    target = np.zeros((4, row_bytes), np.uint8)
    copied(source.reshape(-1) if flat else source, np.int32(3), target, 2)
    assert (target[2] == source[3]).all()
    assert not target[[0, 1, 3]].any()

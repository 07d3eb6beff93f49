"""The cold tier: which way rows are read. Faults of files are tested with the store (test_features.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from sagann.runtime.tiered.cold_rows import FileRows, StoreRows, cold_rows
from tests.stores import ComputedRows


def test_a_mapped_tensor_is_read_by_position_and_another_store_is_asked(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(30, dtype=np.float32).reshape(10, 3))
    mapped = torch.from_numpy(np.load(tmp_path / "rows.npy", mmap_mode="c"))
    for features, kind in (
        (mapped, FileRows),
        (mapped[2:], FileRows),
        (mapped.clone(), StoreRows),
        (ComputedRows(10, 3), StoreRows),
    ):
        cold = cold_rows(features)
        assert isinstance(cold, kind)
        target = np.zeros((4, 12), np.uint8)
        reads = cold.read(np.array([7, 0, 7]), target, np.array([3, 0, 1]))
        expected = torch.zeros(4, 3)
        rows = features.rows(torch.tensor([7, 0])) if isinstance(features, ComputedRows) else features[[7, 0]]
        expected[[3, 1]], expected[0] = rows[0], rows[1]
        assert torch.equal(torch.from_numpy(target).view(torch.float32), expected)
        assert (reads.num_bytes > 0) == (kind is FileRows)
        cold.require_unchanged()

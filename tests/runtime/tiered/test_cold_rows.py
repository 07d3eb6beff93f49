"""The cold tier: which way rows are read. Faults of files are tested with the store (test_features.py)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from sagann.runtime.tiered.cold_rows import FileRows, cold_rows


def test_pages_of_rows_that_stay_in_memory_are_given_up_unless_they_were_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).random((4096, 256), dtype=np.float32))
    mapped = torch.from_numpy(np.load(path, mmap_mode="c"))
    cold = cold_rows(mapped)
    assert isinstance(cold, FileRows)
    advised = []
    advise = os.posix_fadvise

    def noted(file: int, offset: int, num_bytes: int, advice: int) -> None:
        advised.append((offset, num_bytes, advice))
        advise(file, offset, num_bytes, advice)

    ids = np.arange(10, 4000, 7)
    for was_cached in (True, False):
        target = np.zeros((len(ids), 1024), np.uint8)
        with monkeypatch.context() as patches:
            patches.setattr("sagann.runtime.tiered.cold_rows.is_cached", lambda *part, answer=was_cached: answer)
            patches.setattr(os, "posix_fadvise", noted)
            cold.read_once(ids, target, np.arange(len(ids)))
        assert torch.equal(torch.from_numpy(target).view(torch.float32), mapped[ids])
        part = (128 + 10 * 1024, (ids[-1] - 9) * 1024, os.POSIX_FADV_DONTNEED)
        assert advised == ([] if was_cached else [part])
    assert cold.read_once(ids[:0], target, ids[:0]).num_reads == 0

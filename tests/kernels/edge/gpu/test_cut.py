"""The order in which partial results are merged."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")

from sagann.kernels.edge.gpu import cut


@pytest.mark.parametrize("counts", [[], [1], [3], [4], [2, 30, 9, 10, 1, 81]], ids=str)
def test_every_slot_is_merged_once_and_in_order(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "FAN_IN", 3)
    rows = np.arange(len(counts)) * 10
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    tree = cut.merge_tree(rows, indptr)
    # Every slot holds the list of first slots that went into it.
    slots = {slot: [slot] for slot in range(int(indptr[-1]))}
    done = {}
    for level in tree.levels:
        for first, last, target in level.tolist():
            assert 0 < last - first <= 3
            merged = [leaf for slot in range(first, last) for leaf in slots.pop(slot)]
            if target >= 0:
                done[target] = merged
            else:
                assert -target - 1 not in slots
                assert -target - 1 < tree.num_slots
                slots[-target - 1] = merged
    assert slots == {}
    assert done == {
        row: list(range(first, last))
        for row, first, last in zip(rows.tolist(), indptr[:-1].tolist(), indptr[1:].tolist(), strict=True)
    }

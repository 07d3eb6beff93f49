"""Prefetching changes nothing and reads no entry beyond the ids."""

from __future__ import annotations

import numpy as np

from sagann.jit import compiled
from sagann.tiering.prefetch import AHEAD, prefetch_by_id, prefetch_by_slot


@compiled()
def prefetched(table, slot_of, ids):  # type: ignore[no-untyped-def]
    for first in range(0, len(ids), AHEAD):
        prefetch_by_id(slot_of, ids, first)
        prefetch_by_slot(table, slot_of, ids, first)


def test_any_number_of_ids_may_be_prefetched() -> None:
    table, slot_of = np.arange(6, dtype=np.int64), np.array([-1, 5, 0], np.int32)
    for count in (0, 1, AHEAD - 1, AHEAD, AHEAD + 1, 1000):
        prefetched(table, slot_of, np.arange(count) % 3)
    assert table.tolist() == [0, 1, 2, 3, 4, 5]
    assert slot_of.tolist() == [-1, 5, 0]

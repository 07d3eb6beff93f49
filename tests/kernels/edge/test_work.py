"""How much the merges of a device take is known before the degrees are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")

from sagann.kernels.edge.divide import divide
from sagann.kernels.edge.gpu.cut import merge_tree
from sagann.kernels.edge.work import DEVICE_GRAIN, Grain, most_items, most_slots
from sagann.plan.hops import most_merged


@given(
    degrees=st.lists(st.one_of(st.integers(0, 20), st.integers(100, 150), st.integers(0, 9000)), max_size=60),
    grain=st.sampled_from(
        [DEVICE_GRAIN, Grain(num_items=8, smallest=4, largest=64), Grain(num_items=4, smallest=1)]
    ),
)
def test_no_cut_takes_more_than_said(degrees: list[int], grain: Grain) -> None:
    indptr = np.concatenate([[0], np.cumsum(np.array(degrees, dtype=np.int64))]).astype(np.int64)
    work = divide(indptr, grain)
    rows, edges = len(degrees), int(indptr[-1])
    items, slots = most_items(rows, edges, grain), most_slots(rows, edges, grain)
    tree = merge_tree(work.split_rows, work.split_indptr)
    assert tree.num_slots <= work.num_slots + most_merged(slots)
    assert sum(map(len, tree.levels)) <= len(work.split_rows) + 2 * most_merged(slots)
    whole = merge_tree(np.array([0]), np.array([0, len(work.items)]))
    assert whole.num_slots <= len(work.items) + most_merged(items)
    assert sum(map(len, whole.levels)) <= most_merged(items) + 1

"""How functions of edges are built, and which rows and edges a work item takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st

from sagann.kernels.edge.builder import Builder
from sagann.kernels.edge.divide import divide
from sagann.kernels.edge.function import Input
from sagann.kernels.edge.work import DEVICE_GRAIN, HOST_GRAIN, Grain, item_size, most_items, most_slots, most_splits
from sagann.plan.hops import most_merged


def builder() -> Builder:
    return Builder([Input(name=name, side="src", shape=(2, 3), dtype=torch.float16) for name in ("x", "y")])


def test_equal_operations_are_one() -> None:
    b = builder()
    assert b.op("add", "x", "y") == b.op("add", "x", "y")
    assert b.op("mul", "x", 2) != b.op("mul", "x", 2.0)
    assert b.op("mul", "x", 0.0) != b.op("mul", "x", -0.0)


GRAINS = [DEVICE_GRAIN, Grain(num_items=8, smallest=4, largest=64), Grain(num_items=4, smallest=1), HOST_GRAIN]
DEGREES = st.lists(st.one_of(st.integers(0, 20), st.integers(100, 150), st.integers(0, 9000)), max_size=60)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(degrees=DEGREES, grain=st.sampled_from(GRAINS))
@example(degrees=[], grain=GRAINS[0])
@example(degrees=[0, 0, 0], grain=GRAINS[2])
@example(degrees=[5000, 5000, 1, 0, 9000], grain=GRAINS[1])
def test_items_cover_every_row_and_edge_once(dtype: type[np.integer], degrees: list[int], grain: Grain) -> None:
    indptr = np.concatenate([[0], np.cumsum(np.array(degrees, dtype=np.int64))]).astype(dtype)
    work = divide(indptr, grain)
    size = item_size(len(degrees) + int(indptr[-1]), grain)
    is_piece = work.items[:, 4] >= 0
    whole, pieces = work.items[~is_piece], work.items[is_piece]
    # Pieces come first, a row after the other, their slots counted up.
    assert is_piece.tolist() == sorted(is_piece.tolist(), reverse=True)
    assert pieces[:, 4].tolist() == list(range(work.num_slots))
    hubs = [row for row, degree in enumerate(degrees) if degree > 2 * size]
    assert work.split_rows.tolist() == hubs
    for number, row in enumerate(hubs):
        of_row = pieces[work.split_indptr[number] : work.split_indptr[number + 1]]
        assert (of_row[:, 0] == row).all()
        assert (of_row[:, 1] == row + 1).all()
        assert follows(of_row[:, 2:4], int(indptr[row]), int(indptr[row + 1]))
        assert (of_row[:, 3] - of_row[:, 2] <= size).all()
    rows = [row for first, last in whole[:, :2].tolist() for row in range(first, last)]
    assert rows == [row for row in range(len(degrees)) if row not in hubs]
    assert (indptr[whole[:, 0]] == whole[:, 2]).all()
    assert (indptr[whole[:, 1]] == whole[:, 3]).all()
    assert follows(np.stack([work.runs[:-1], work.runs[1:]], 1), 0, len(work.items))
    # How much a cut takes is known before the degrees are.
    num_rows, num_edges = len(degrees), int(indptr[-1])
    assert len(work.items) <= most_items(num_rows, num_edges, grain)
    assert work.num_slots <= most_slots(num_rows, num_edges, grain)
    assert len(work.split_rows) <= most_splits(num_rows, num_edges, grain)


def follows(ranges: np.ndarray, first: int, last: int) -> bool:
    return [first, *ranges[:, 1].tolist()] == [*ranges[:, 0].tolist(), last]


@given(degrees=DEGREES, grain=st.sampled_from(GRAINS[:3]))
def test_merges_of_a_device_take_no_more_than_is_said(degrees: list[int], grain: Grain) -> None:
    pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
    from sagann.kernels.edge.gpu.cut import merge_tree

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

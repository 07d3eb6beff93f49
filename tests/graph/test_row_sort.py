"""Rows sorted each by itself are what NumPy's stable sort makes of them, however long they are."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from sagann.graph import row_sort
from sagann.graph.row_sort import sort_rows

Sort = Callable[[Tensor, Tensor, Tensor | None], None]


def check(lengths: list[int], ids: Tensor, sort: Sort = sort_rows) -> None:
    indptr = torch.tensor([0, *np.cumsum(lengths)])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort([ids.numpy(), rows])
    expected = ids.numpy()[order]
    for positions in (None, torch.arange(len(ids), dtype=torch.int32), torch.arange(len(ids))):
        found = ids.clone()
        sort(indptr, found, positions)
        np.testing.assert_array_equal(found, expected)
        if positions is not None:
            np.testing.assert_array_equal(positions, order)


@given(
    st.lists(st.integers(0, 100), max_size=12),
    st.sampled_from([1, 2, 300, 2**16, 2**24 + 1, 2**31 - 1, 2**31 + 7, 2**50]),
    st.integers(0, 2**32 - 1),
)
def test_rows_short_and_long_with_ids_of_any_width(lengths: list[int], limit: int, seed: int) -> None:
    drawn = np.random.default_rng(seed).integers(0, limit, sum(lengths))
    for dtype in (torch.int32, torch.int64) if limit < 2**31 else (torch.int64,):
        check(lengths, torch.from_numpy(drawn).to(dtype))


@pytest.mark.parametrize(
    "lengths", [[150_000], [0, 70_000, 0, 1, 2, 65, 70_000, 0], [7] * 20_000, [64, 65] * 1000], ids=str
)
def test_by_several_threads(lengths: list[int]) -> None:
    check(lengths, torch.randint(0, 100_000, (sum(lengths),), generator=torch.Generator().manual_seed(0)))


def test_ids_that_ascend_or_are_equal_stay_as_they_are() -> None:
    check([3, 200], torch.cat([torch.zeros(3), torch.arange(200)]).int())
    check([100_000], torch.arange(100_000).int())


def test_the_sort_of_a_device_gives_the_same() -> None:
    ids = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(0))
    check([0, 5, 300, 0, 95, 0], ids, row_sort._sort_on_device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_it_gives_the_same() -> None:
    indptr, ids = torch.tensor([0, 3, 3, 8]), torch.tensor([2, 1, 1, 5, 4, 0, 4, 3])
    positions = torch.arange(8)
    on_device = [array.cuda() for array in (indptr, ids, positions)]
    sort_rows(on_device[0], on_device[1], on_device[2])
    sort_rows(indptr, ids, positions)
    assert torch.equal(on_device[1].cpu(), ids)
    assert torch.equal(on_device[2].cpu(), positions)


def test_the_number_of_threads_is_left_alone() -> None:
    threads, of_numba = torch.get_num_threads(), numba.get_num_threads()
    sort_rows(torch.tensor([0, 100_000]), torch.arange(100_000).flip(0))
    assert (torch.get_num_threads(), numba.get_num_threads()) == (threads, min(threads, of_numba))

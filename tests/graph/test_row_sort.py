"""Rows sorted each by itself are what NumPy's stable sort makes of them, however long they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "lengths",
    [[150_000], [0, 70_000, 0, 1, 2, 65, 70_000, 0], [7] * 20_000, [64, 65] * 1000],
    ids=["one row", "two long", "many short", "around the limit"],
)
def test_by_several_threads(lengths: list[int], dtype: torch.dtype) -> None:
    ids = torch.randint(0, 100_000, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    check(lengths, ids.to(dtype))


def test_the_sort_of_a_device_gives_the_same() -> None:
    ids = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(0))
    check([0, 5, 300, 0, 95, 0], ids, row_sort._sort_on_device)

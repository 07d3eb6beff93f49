"""Edges grouped by an end, rows sorted each by itself, and chunks counted: as NumPy and plain loops have them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sagann.graph import counting_sort, row_sort
from sagann.graph.chunk_counts import chunk_counts
from sagann.graph.counting_sort import group_by_key
from sagann.graph.row_sort import sort_rows
from tests.graphs import odd_topologies, random_topology


def check(keys, num_keys, *, parallel=True, key_dtype=torch.int64):
    keys = keys.to(key_dtype)
    order = np.argsort(keys.numpy(), kind="stable")
    values = torch.arange(len(keys), dtype=torch.int64) * 3
    grouped = group_by_key(
        keys, num_keys, values=values, value_dtype=torch.int32, positions=True, parallel=parallel
    )
    np.testing.assert_array_equal(grouped.positions, order)
    np.testing.assert_array_equal(grouped.values, order * 3)
    np.testing.assert_array_equal(grouped.indptr.diff(), np.bincount(keys.numpy(), minlength=num_keys))
    assert grouped.indptr[0] == 0
    assert (grouped.indptr.dtype, grouped.values.dtype, grouped.positions.dtype) == (
        torch.int64,
        torch.int32,
        torch.int32,
    )


@settings(max_examples=25)
@given(
    st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=200))),
    st.integers(0, 6),
    st.integers(1, 5),
    st.sampled_from([torch.int32, torch.int64]),
)
def test_equals_numpy_for_any_buckets_and_slices(keys_of, bits, slices, dtype):
    num_keys, keys = keys_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting_sort, "BUCKET_BITS", bits)
        patch.setattr(counting_sort, "ITEMS_PER_THREAD", max(1, len(keys) // slices))
        patch.setattr(numba, "get_num_threads", lambda: slices)
        check(torch.tensor(keys, dtype=torch.int64), num_keys, key_dtype=dtype)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("num_keys", [1, 70_001])
def test_equals_numpy_on_large_inputs(num_keys, parallel):
    shares = torch.rand(200_003, generator=torch.Generator().manual_seed(num_keys)) ** 6
    check((shares * num_keys).long().clamp(max=num_keys - 1), num_keys, parallel=parallel)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_it_gives_the_same():
    keys = torch.randint(0, 500, (30_000,), generator=torch.Generator().manual_seed(0))
    host = group_by_key(keys, 500, values=keys * 2, value_dtype=torch.int32, positions=True)
    device = group_by_key(keys.cuda(), 500, values=keys.cuda() * 2, value_dtype=torch.int32, positions=True)
    for name in ("indptr", "values", "positions"):
        assert torch.equal(getattr(device, name).cpu(), getattr(host, name))
        assert getattr(device, name).dtype == getattr(host, name).dtype


Sort = Callable[[Tensor, Tensor, Tensor], None]


def check_rows(lengths: list[int], ids: Tensor, sort: Sort = sort_rows) -> None:
    indptr = torch.tensor([0, *np.cumsum(lengths)])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort([ids.numpy(), rows])
    expected = ids.numpy()[order]
    for positions in (
        torch.empty(0, dtype=torch.int32),
        torch.arange(len(ids), dtype=torch.int32),
        torch.arange(len(ids)),
    ):
        found = ids.clone()
        sort(indptr, found, positions)
        np.testing.assert_array_equal(found, expected)
        if len(positions):
            np.testing.assert_array_equal(positions, order)


@given(
    st.lists(st.integers(0, 100), max_size=12),
    st.sampled_from([1, 2, 300, 2**16, 2**24 + 1, 2**31 - 1, 2**31 + 7, 2**50]),
    st.integers(0, 2**32 - 1),
)
def test_rows_short_and_long_with_ids_of_any_width(lengths: list[int], limit: int, seed: int) -> None:
    drawn = np.random.default_rng(seed).integers(0, limit, sum(lengths))
    for dtype in (torch.int32, torch.int64) if limit < 2**31 else (torch.int64,):
        check_rows(lengths, torch.from_numpy(drawn).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "lengths",
    [[150_000], [0, 70_000, 0, 1, 2, 65, 70_000, 0], [7] * 20_000, [64, 65] * 1000],
    ids=["one row", "two long", "many short", "around the limit"],
)
def test_by_several_threads(lengths: list[int], dtype: torch.dtype, threads: Callable[[int], None]) -> None:
    threads(2)
    ids = torch.randint(0, 100_000, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    check_rows(lengths, ids.to(dtype))
    assert torch.get_num_threads() == 2


def test_the_sort_of_a_device_gives_the_same() -> None:
    ids = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(0))
    check_rows([0, 5, 300, 0, 95, 0], ids, row_sort._sort_on_device)


TOPOLOGIES = odd_topologies()


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("cuts", [(), (0, 1, 1)])
def test_every_edge_counts_once(name: str, cuts: tuple[int, ...]) -> None:
    topology = TOPOLOGIES[name]
    bounds = (0, *cuts, topology.num_dst)
    expected = torch.zeros(len(bounds) - 1, len(bounds) - 1, dtype=torch.int64)
    for src, dst in zip(topology.indices.tolist(), topology.edge_dst().tolist(), strict=True):
        expected[bisect_right(bounds, src) - 1, bisect_right(bounds, dst) - 1] += 1
    assert torch.equal(chunk_counts(topology, bounds), expected)


def test_threads_share_the_edges_of_a_larger_graph_and_many_intervals_are_counted() -> None:
    topology = random_topology(700, 80_000)
    counts = chunk_counts(topology, range(701))
    assert torch.equal(counts.sum(0), topology.in_degrees())
    assert torch.equal(counts.sum(1), topology.out_degrees())
    assert torch.equal(chunk_counts(topology, (0, 300, 700))[0, 1], counts[:300, 300:].sum())

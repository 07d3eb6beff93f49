import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from sagann.graph import counting_sort
from sagann.graph.counting_sort import counts_below, group_by_key, out_edges


def check(keys, num_keys, **dtypes):
    keys = keys.to(dtypes.get("key_dtype", torch.int64))
    order = np.argsort(keys.numpy(), kind="stable")
    values = torch.arange(len(keys), dtype=torch.int64) * 3
    grouped = group_by_key(keys, num_keys, values=values, value_dtype=torch.int32, positions=True)
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


@pytest.mark.parametrize("num_keys", [1, 70_001])
def test_equals_numpy_on_large_inputs(num_keys):
    shares = torch.rand(200_003, generator=torch.Generator().manual_seed(num_keys)) ** 6
    check((shares * num_keys).long().clamp(max=num_keys - 1), num_keys)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("sizes", [(3, 0, 0), (5, 2, 9), (700, 300, 9000)])
def test_out_edges_are_the_edges_grouped_by_source(sizes, dtype):
    num_src, num_dst, num_edges = sizes
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(num_src, (num_edges,), generator=generator).to(dtype)
    ends = torch.randint(num_edges + 1, (max(num_dst - 1, 0),), generator=generator).sort().values
    indptr = torch.cat([torch.tensor([0]), ends, torch.tensor([num_edges])]) if num_dst else torch.tensor([0])
    destinations = torch.repeat_interleave(indptr.diff()).to(dtype)
    expected = group_by_key(indices, num_src, values=destinations, positions=True)
    found = out_edges(indptr, indices, num_src)
    for name in ("indptr", "values", "positions"):
        assert getattr(found, name).equal(getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_it_gives_the_same():
    keys = torch.randint(0, 500, (30_000,), generator=torch.Generator().manual_seed(0))
    host = group_by_key(keys, 500, values=keys * 2, value_dtype=torch.int32, positions=True)
    device = group_by_key(keys.cuda(), 500, values=keys.cuda() * 2, value_dtype=torch.int32, positions=True)
    for name in ("indptr", "values", "positions"):
        assert torch.equal(getattr(device, name).cpu(), getattr(host, name))
        assert getattr(device, name).dtype == getattr(host, name).dtype
    items, bounds = keys.sort().values.int(), torch.arange(0, 600, 7)
    below = counts_below(items.cuda(), bounds.cuda())
    assert torch.equal(below.cpu(), counts_below(items, bounds))
    assert below.dtype == torch.int64


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.lists(st.integers(-1, 41), max_size=60),
    st.sampled_from([torch.int32, torch.int64]),
)
def test_items_below_bounds_are_counted(items, bounds, dtype):
    items, bounds = torch.tensor(sorted(items), dtype=dtype), torch.tensor(sorted(bounds), dtype=torch.int64)
    counts = counts_below(items, bounds)
    assert counts.dtype == torch.int64
    assert counts.tolist() == [int((items < bound).sum()) for bound in bounds]

"""DeviceFeatures on simulated devices: every row has its bits, from whichever tier, and each tier is counted."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.feature_store import Features, FeatureStore
from sagann.graph.rows import csr_tensor
from sagann.runtime.tiered import DeviceFeatures, TieredFeatures
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.tiered.test_features import dataset_array
from tests.stores import ComputedRows

NUM_ROWS = 200
interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


def features_of(width: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(NUM_ROWS, width, generator=torch.Generator().manual_seed(3)).to(dtype)


def hottest_first() -> Tensor:
    return torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(4))


def assert_rows(store: DeviceFeatures, features: Tensor) -> None:
    for ids in (torch.arange(NUM_ROWS), torch.randint(NUM_ROWS, (301,)), torch.tensor([], dtype=torch.int64)):
        found = store.rows(ids)
        assert found.dtype == features.dtype
        assert torch.equal(found, features[ids])


@pytest.mark.parametrize(
    ("hot", "dtype"),
    [
        ("0%", torch.float32),
        ("30%", torch.bfloat16),
        ("100%", torch.float32),
        (2000, torch.float16),
        ("auto", torch.float32),
    ],
)
def test_rows_have_their_bits_from_device_and_host(hot: str | int, dtype: torch.dtype) -> None:
    features, devices = features_of(dtype=dtype), SimulatedDevices()
    store = DeviceFeatures(features, hot, devices=devices, hottest=hottest_first())
    assert isinstance(store, FeatureStore)
    assert store.is_in_place
    assert devices.finished
    assert_rows(store, features)
    assert torch.equal(store.slice(3, 9), features[3:9])
    if isinstance(hot, int):
        # The index takes four bytes a row.
        assert store.num_hot_rows == (hot - 4 * NUM_ROWS) // features[:1].nbytes
        assert store.hot_bytes <= hot


def test_every_tier_is_counted() -> None:
    features, order = features_of(), hottest_first()
    store = DeviceFeatures(features, "30%", devices=SimulatedDevices(), hottest=order)
    # Five hot rows, one of them twice, and four that are not hot.
    store.rows(torch.cat([order[:5], order[:1], order[-4:]]))
    assert {tier: (count.rows, count.num_bytes) for tier, count in store.tiers().items()} == {
        "device": (6, 120),
        "in place": (4, 80),
        "far": (0, 0),
    }
    traffic = store.traffic()
    assert (traffic.hot.rows, traffic.cold.rows, traffic.cold_reads) == (6, 4, 0)


def test_ids_that_nobody_checks_give_zeros_and_an_error_with_the_counters() -> None:
    features = features_of()
    store = DeviceFeatures(features, "30%", devices=SimulatedDevices())
    out = torch.full((4, 5), torch.nan)
    ids = torch.tensor([5, 200, -7, 190])
    assert not store.has_far_rows
    store.gather(ids, store.pick(ids), out)
    assert torch.equal(out, torch.stack([features[5], torch.zeros(5), torch.zeros(5), features[190]]))
    for look in (store.tiers, store.traffic):
        with pytest.raises(
            InputError, match=r"ids out of range: 2 of the ids on 'cpu', but there are 200 vertices"
        ):
            look()


@interpreted
def test_rows_are_queued_without_a_wait() -> None:
    host_calls = pytest.importorskip("tests.runtime.host_calls")
    features = features_of()
    store = DeviceFeatures(features, "30%", devices=SimulatedDevices(), hottest=hottest_first())
    ids = torch.randint(NUM_ROWS, (50,))
    for _ in range(2):
        with host_calls.counted(ids) as calls:
            store.rows(ids)
        assert (calls.queued, calls.waits) == ({"copy_": 1, "launch": 1}, {})


@given(
    st.lists(st.integers(900, 4000), min_size=1, max_size=4),
    st.floats(0, 1),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3))),
)
def test_several_devices(free_bytes: list[int], replicated: float, links: set[tuple[int, int]]) -> None:
    features, order = features_of(), hottest_first()
    devices = SimulatedDevices([2 * size for size in free_bytes], links=sorted(links))
    store = DeviceFeatures(features, devices=devices, hottest=order, replicated=replicated)
    for number in range(len(free_bytes)):
        reader = store.seen_from(number)
        assert_rows(reader, features)
        assert reader.hot_bytes <= free_bytes[number]
        before = reader.tiers()
        reader.rows(order[: reader.num_hot_rows])
        gained = {tier: counts.rows - before[tier].rows for tier, counts in reader.tiers().items()}
        assert (gained["in place"], gained["far"]) == (0, 0)
        # Nothing is read from a device without a link.
        for other in range(len(free_bytes)):
            if other != number and not devices.linked(number, other):
                assert gained[f"peer {other}"] == 0


def test_hot_rows_are_interleaved_over_devices_and_the_hottest_replicated() -> None:
    features, order = features_of(), hottest_first()
    store = DeviceFeatures(features, "10%", devices=SimulatedDevices([1 << 20] * 4), hottest=order, replicated=0.5)
    # Twenty rows on each device: ten are everywhere, ten are its own.
    assert store.num_hot_rows == 50
    reader = store.seen_from(2)
    reader.rows(order[:10])
    assert reader.tiers()["device"].rows == 10
    reader.rows(order[10:50])
    assert {tier: counts.rows for tier, counts in reader.tiers().items()} == {
        "device": 20,
        "peer 0": 10,
        "peer 1": 10,
        "peer 3": 10,
        "in place": 0,
        "far": 0,
    }
    assert store.traffic().rows == 0


def test_device_host_and_disk_are_one_store(tmp_path: Path) -> None:
    features, order = features_of(), hottest_first()
    below = TieredFeatures(dataset_array(tmp_path, features), "50%", hottest=order)
    store = DeviceFeatures(below, "10%", devices=SimulatedDevices(), hottest=order)
    assert_rows(store, features)
    before = store.tiers()
    store.rows(torch.arange(NUM_ROWS))
    gained = {tier: counts.rows - before[tier].rows for tier, counts in store.tiers().items()}
    assert gained == {"device": 20, "in place": 80, "far": 100}


def test_a_host_tier_that_changes_is_not_read_in_place(tmp_path: Path) -> None:
    features, devices = features_of(), SimulatedDevices()
    below = TieredFeatures(dataset_array(tmp_path, features), "50%", cache="look-ahead")
    store = DeviceFeatures(below, "10%", devices=devices)
    assert not store.is_in_place
    assert not devices.registered
    for _ in range(3):
        assert_rows(store, features)


def test_rows_of_a_file_are_far_and_their_reads_are_counted(tmp_path: Path) -> None:
    features = features_of()
    store = DeviceFeatures(dataset_array(tmp_path, features), "10%", devices=SimulatedDevices())
    store.rows(torch.arange(NUM_ROWS))
    assert {tier: counts.rows for tier, counts in store.tiers().items()} == {
        "device": 20,
        "in place": 0,
        "far": 180,
    }
    # Rows that follow one another are one read.
    assert store.traffic().cold_reads == 1
    assert store.traffic().cold_read_bytes == store.traffic().cold.num_bytes == 180 * 20
    assert_rows(store, features)


@pytest.mark.parametrize(
    "features", [ComputedRows(NUM_ROWS, 7), torch.ones(7, NUM_ROWS).T], ids=["computed", "strided"]
)
def test_what_has_no_address_of_its_own_is_far(features: Features) -> None:
    store = DeviceFeatures(features, "10%", devices=SimulatedDevices())
    expected = features if isinstance(features, Tensor) else features.rows(torch.arange(NUM_ROWS))
    assert_rows(store, expected.contiguous())
    assert (store.is_in_place, store.tiers()["far"].rows > 0) == (False, True)


@pytest.mark.parametrize("refusal", [{"refuse_at": 0}, {"forgets": True}])
def test_refused_pinning_falls_back_with_one_warning(refusal: dict[str, int]) -> None:
    features, devices = features_of(), SimulatedDevices(**refusal)
    with pytest.warns(RuntimeWarning) as caught:
        store = DeviceFeatures(features, "30%", devices=devices)
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith(
        "The features cannot be read in place by cpu: host memory cannot be pinned: piece 1 of 1, 3.9 KiB of 3.9 KiB: "
    )
    assert (
        "copied through a pinned staging buffer instead, which takes the processor's time and memory bandwidth."
        in text
    )
    assert warning.filename == __file__
    assert not devices.pinned
    with warnings.catch_warnings(action="error"):
        assert_rows(store, features)
    assert (store.is_in_place, store.tiers()["in place"].rows) == (False, 0)


def test_rows_without_features() -> None:
    features = features_of(0)
    assert_rows(DeviceFeatures(features, "30%", devices=SimulatedDevices()), features)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hottest": torch.tensor([1, 1])}, r"vertex repeated: .* \(in DeviceFeatures, hottest\)"),
        ({"replicated": 2.0}, r"part out of range: 2.0, expected 0.0 to 1.0 \(in replicated\)"),
        ({"hot": 100}, "hot tier is smaller than its tables: 100 B, but tables of 200 rows take 800 B"),
        ({"hot": "2GiB"}, "hot tier is larger than the memory of device 0: 2.0 GiB, there are 1.0 GiB in all"),
        ({"hot": "50%", "free_bytes": [1000]}, "does not fit the memory of device 0: at least 2.7 KiB are needed"),
    ],
)
def test_arguments_that_are_refused(given: dict[str, object], message: str) -> None:
    devices = SimulatedDevices(given.pop("free_bytes", (1 << 20,)))
    with pytest.raises(InputError, match=message):
        DeviceFeatures(features_of(), **{"hot": "10%", **given}, devices=devices)
    assert not devices.pinned


def test_sparse_features_and_ids_out_of_range_are_refused() -> None:
    sparse = csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), num_columns=3)
    with pytest.raises(InputError, match=r"sparse features have no tiers: .* \(in DeviceFeatures, features\)"):
        DeviceFeatures(sparse, devices=SimulatedDevices())
    store = DeviceFeatures(features_of(), devices=SimulatedDevices())
    with pytest.raises(InputError, match=r"vertex id out of range: 200, .* \(in DeviceFeatures, ids, position 1\)"):
        store.rows(torch.tensor([0, 200]))

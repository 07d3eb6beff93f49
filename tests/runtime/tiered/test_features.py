"""TieredFeatures: every row has its bits, whatever lies in the hot tier, and in any number of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sagann.errors import DatasetError, InputError
from sagann.graph import AnnouncedFeatures, FeatureStore, Topology, rmat_edges
from sagann.graph.feature_store import feature_store
from sagann.graph.rows import csr_tensor, flat_bytes
from sagann.runtime.tiered import TieredFeatures
from sagann.sampling import NeighborSampler, seed_batches
from sagann.storage.npy import map_npy, npy_header, write_npy
from sagann.tiering import CACHES
from tests.runtime.tiered.budget_driver import EVERY, WIDTH
from tests.stores import ComputedRows

NUM_ROWS = 997
CACHE_NAMES = sorted(CACHES)


def bits(dtype: torch.dtype, row_shape: tuple[int, ...]) -> Tensor:
    """Rows of random bits, NaN and infinity among the numbers."""
    width = int(np.prod(row_shape)) * dtype.itemsize
    found = np.random.default_rng(0).integers(256, size=(NUM_ROWS, width), dtype=np.uint8)
    return torch.from_numpy(found).view(dtype).view(NUM_ROWS, *row_shape)


def dataset_array(folder: Path, tensor: Tensor) -> Tensor:
    """A tensor as an array of a dataset, mapped from its file."""
    return map_npy(folder / "features.npy", write_npy(folder / "features.npy", tensor))


def same(found: Tensor, expected: Tensor) -> bool:
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and bytes(flat_bytes(found)) == bytes(flat_bytes(expected))
    )


def batches_of(count: int, size: int = 200) -> list[Tensor]:
    """Batches in which some rows stand far more often than others."""
    generator = np.random.default_rng(1)
    return [torch.from_numpy((NUM_ROWS * generator.random(size) ** 3).astype(np.int64)) for _ in range(count)]


@pytest.mark.parametrize("cache", CACHE_NAMES)
@pytest.mark.parametrize("where", [dataset_array, lambda _, tensor: tensor])
@pytest.mark.parametrize(
    ("dtype", "row_shape"),
    [
        (torch.float16, (3,)),
        (torch.bfloat16, (5, 2)),
        (torch.float32, ()),
        (torch.float32, (128,)),
        (torch.float64, (1500,)),
    ],
)
def test_rows_have_the_bits_of_the_features(
    tmp_path: Path,
    cache: str,
    where: Callable[[Path, Tensor], Tensor],
    dtype: torch.dtype,
    row_shape: tuple[int, ...],
) -> None:
    features = bits(dtype, row_shape)
    store = TieredFeatures(
        where(tmp_path, features),
        hot=0.1,
        cache=cache,
        hottest=torch.randperm(NUM_ROWS, generator=torch.manual_seed(0)),
    )
    assert (store.num_rows, store.row_shape, store.dtype) == (NUM_ROWS, row_shape, dtype)
    for number, ids in enumerate(batches_of(5)):
        assert same(store.rows_of(store.announce(ids)), features[ids])
        assert same(store.rows(ids.flip(0)), features[ids.flip(0)])
        assert same(store.slice(3 * number, 100), features[3 * number : 100])
    assert same(store.rows(torch.empty(0, dtype=torch.int64)), features[:0])
    assert 0 < store.traffic().hit_rate < 1


@pytest.mark.parametrize("cache", CACHE_NAMES)
@pytest.mark.parametrize("hot", [0.0, 1.0])
def test_all_or_no_rows_may_be_hot(tmp_path: Path, cache: str, hot: float) -> None:
    features = bits(torch.float32, (4,))
    store = TieredFeatures(dataset_array(tmp_path, features), hot=hot, cache=cache, hottest=torch.arange(NUM_ROWS))
    for ids in batches_of(3):
        assert same(store.rows(ids), features[ids])
    assert store.traffic().hit_rate == hot


def test_a_store_of_the_users_is_asked_for_cold_rows_alone() -> None:
    class Asked(ComputedRows):
        def rows(self, ids: Tensor) -> Tensor:
            asked.extend(ids.tolist())
            return super().rows(ids)

    asked: list[int] = []
    features = Asked(100, 3)
    store = TieredFeatures(features, hot=0.1, hottest=torch.tensor([7, *range(50, 60)]))
    assert sorted(asked) == [7, *range(50, 59)]
    asked.clear()
    assert torch.equal(store.rows(torch.tensor([7, 8, 59])), ComputedRows(100, 3).rows(torch.tensor([7, 8, 59])))
    assert asked == [8, 59]


def test_without_an_order_the_first_rows_are_hot() -> None:
    store = TieredFeatures(torch.randn(100, 3), hot=0.1)
    store.rows(torch.arange(20))
    assert (store.traffic().hot.rows, store.traffic().hot.num_bytes) == (10, 120)
    assert (store.traffic().cold.rows, store.traffic().cold.num_bytes) == (10, 120)


@pytest.mark.parametrize("cache", CACHE_NAMES)
def test_several_threads_read_at_once(tmp_path: Path, cache: str) -> None:
    features = bits(torch.float32, (16,))
    store = TieredFeatures(dataset_array(tmp_path, features), hot=0.05, cache=cache, hottest=torch.arange(100))
    batches = batches_of(100, size=50)
    announced = [store.announce(ids) for ids in batches]

    def is_right(number: int) -> bool:
        ids = batches[number]
        other = batches[-number]
        return same(store.rows_of(announced[number]), features[ids]) and same(store.rows(other), features[other])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(is_right, range(len(batches))))
    finally:
        sys.setswitchinterval(interval)
    assert store.traffic().rows == 2 * 100 * 50


def sampled_batches() -> tuple[int, list[Tensor]]:
    src, dst = rmat_edges(2000, 20_000, seed=0)
    topology = Topology.from_coo(src=src, dst=dst, num_src=2000)
    sampler = NeighborSampler(topology, [5, 3])
    seeds = seed_batches(torch.arange(500), 50)
    return 2000, [sampler.sample(ids, batch=number).src_ids for number, ids in enumerate(seeds)]


def test_decisions_do_not_depend_on_the_order_in_which_batches_are_asked_for() -> None:
    num_rows, batches = sampled_batches()
    features = torch.randn(num_rows, 4)
    owners = []
    for order in (list(range(len(batches))), list(reversed(range(len(batches))))):
        store = TieredFeatures(features, hot=0.1, cache="look-ahead")
        announced = [store.announce(ids) for ids in batches]
        for number in order:
            assert torch.equal(store.rows_of(announced[number]), features[batches[number]])
        owners.append(store._cache.owners.tolist())
    assert owners[0] == owners[1]


@pytest.mark.parametrize("cache", ["static", "look-ahead"])
def test_an_announced_batch_is_given_once_and_by_its_store(cache: str) -> None:
    store, other = (TieredFeatures(torch.arange(10.0)[:, None], hot=0.2, cache=cache) for _ in range(2))
    assert isinstance(store, AnnouncedFeatures)
    assert isinstance(store, FeatureStore)
    assert not isinstance(feature_store(torch.ones(2, 2)), AnnouncedFeatures)
    assert store.wants_announcements == (cache == "look-ahead")
    first, second = store.announce(torch.tensor([1, 2])), store.announce(torch.tensor([9, 9]))
    assert store.rows_of(second).tolist() == [[9.0], [9.0]]
    assert store.rows_of(first).tolist() == [[1.0], [2.0]]
    for wrong in (first, other.announce(torch.tensor([1])), 5):
        with pytest.raises(InputError, match=r"batch does not wait for its rows: .*Pass what announce\(ids\)"):
            store.rows_of(wrong)


@pytest.mark.parametrize("limit", [2, 100])
def test_batches_beyond_the_window_and_dropped_ones_are_decided_for(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    features = torch.arange(10.0)[:, None]
    store = TieredFeatures(features, hot=0.2, cache="look-ahead")
    monkeypatch.setattr("sagann.tiering.look_ahead.MOST_BATCHES", limit)
    announced = [store.announce(torch.tensor([row, 9])) for row in range(8)]
    del announced[2:5]
    found = [store.rows_of(each).flatten().tolist() for each in announced]
    assert found == [[row, 9.0] for row in (0, 1, 5, 6, 7)]
    assert store.rows(torch.tensor([9, 2])).flatten().tolist() == [9.0, 2.0]
    # Row 9 is read once: each batch keeps it for the next one.
    assert (store.traffic().hot.rows, store.traffic().cold.rows) == (5, 7)


@pytest.mark.parametrize("cache", CACHE_NAMES)
def test_a_size_in_bytes_is_all_memory_of_the_hot_tier(cache: str) -> None:
    features = torch.zeros(50_000, 32)
    store = TieredFeatures(features, hot="2MiB", cache=cache)
    assert store.hot_bytes <= 2 << 20
    known = [*vars(store._cache).values(), *getattr(store._cache, "_tables", ())]
    tables = {id(array): array.nbytes for array in known if isinstance(array, np.ndarray)}
    held = sum(tables.values()) + store._hot.nbytes + store._arrived.nbytes
    # The ring of accesses grows with what is announced.
    assert held <= store.hot_bytes + (1 << 14)
    assert store.num_hot_rows * 128 > (1 << 20) - 9 * 50_000


def test_rows_in_the_order_of_their_ids_need_no_table_by_row() -> None:
    features = torch.rand(1000, 1)
    store = TieredFeatures(features, hot=2000)
    # A row of 4 bytes, and two ids of 4 bytes: of the row that a slot is for, and of the row that lies there.
    assert store.num_hot_rows == 2000 // 12
    assert store.hot_bytes == 12 * store.num_hot_rows
    with pytest.raises(InputError, match="hot tier is smaller than its tables"):
        TieredFeatures(features, hot=2000, hottest=torch.arange(1000))


def test_a_file_that_is_cut_ends_the_read_with_its_name(tmp_path: Path) -> None:
    features = bits(torch.float32, (16,))
    store = TieredFeatures(
        dataset_array(tmp_path, features), hot=0.1, cache="look-ahead", hottest=torch.arange(100)
    )
    path = tmp_path / "features.npy"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DatasetError, match=r"file has become shorter: .*1 more are needed \(in .*features\.npy\)"):
        store.rows(torch.tensor([996]))


def test_a_file_that_is_replaced_or_removed_stays_what_it_was(tmp_path: Path) -> None:
    features = bits(torch.float32, (16,))
    store = TieredFeatures(dataset_array(tmp_path, features), hot=0.1)
    (tmp_path / "other").write_bytes(b"other rows")
    os.replace(tmp_path / "other", tmp_path / "features.npy")
    assert same(store.rows(torch.arange(NUM_ROWS)), features)
    (tmp_path / "features.npy").unlink()
    assert same(store.rows(torch.arange(NUM_ROWS)), features)


def test_a_read_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = bits(torch.float32, (16,))
    for cache in CACHE_NAMES:
        store = TieredFeatures(dataset_array(tmp_path, features), hot=0.1, cache=cache, hottest=torch.arange(99))
        ids = torch.arange(50, 300)
        announcement = store.announce(ids)

        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr("sagann.runtime.tiered.cold_rows.read_scattered", fail)
            with pytest.raises(
                DatasetError, match=r"features cannot be read: Input/output error \(in .*features\.npy\)"
            ):
                store.rows_of(announcement)
        for _ in range(3):
            assert same(store.rows(ids), features[ids])


def test_files_are_closed_with_the_store(tmp_path: Path) -> None:
    mapped = dataset_array(tmp_path, bits(torch.float32, (16,)))
    TieredFeatures(mapped, hot=0.1)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        TieredFeatures(mapped, hot=0.1).rows(torch.arange(10))
    assert len(os.listdir("/proc/self/fd")) == before


ROWS = torch.ones(10, 2)
SPARSE = csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), num_columns=3)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: TieredFeatures(ROWS, cache="lru"),
            r"'lru', expected one of static, .* \(in TieredFeatures, cache\)",
        ),
        (lambda: TieredFeatures(ROWS, hot="all"), "size is not understood"),
        (lambda: TieredFeatures(ROWS, hottest=[1]), "a list, expected Tensor"),
        (
            lambda: TieredFeatures(ROWS, hottest=torch.tensor([1, 10])),
            r"10, .* \(in TieredFeatures, hottest, position 1",
        ),
        (
            lambda: TieredFeatures(ROWS, hottest=torch.tensor([1, 2, 1])),
            r"vertex repeated: 1 stands more than once \(in TieredFeatures, hottest\)",
        ),
        (lambda: TieredFeatures(ROWS, 0.5).rows(torch.tensor([0, 10])), r"out of range: 10, .*, ids, position 1\)"),
        (lambda: TieredFeatures(ROWS, 0.5).announce(torch.tensor([10])), "out of range: 10"),
        (
            lambda: TieredFeatures(ROWS, 0.5).rows(torch.tensor([1]).int()),
            r"torch.int32 \[1\], expected torch.int64",
        ),
        (lambda: TieredFeatures(ROWS, 0.5).rows([1]), "argument has the wrong type"),
        (lambda: TieredFeatures(SPARSE), "sparse features have no tiers: rows of different sizes .*to_dense"),
        (
            lambda: TieredFeatures(ROWS.to("meta")),
            r"memory of the processor: .* 'meta' \(in TieredFeatures, features\)",
        ),
        (lambda: TieredFeatures(ROWS.clone().requires_grad_()), r"no gradient: .* \(in TieredFeatures, features\)"),
    ],
)
def test_what_is_wrong_is_refused(use: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        use()


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["look-ahead", pytest.param("static", marks=pytest.mark.thorough)])
def test_four_times_the_memory_limit_is_read_through_a_tenth(
    tmp_path: Path, cache: str, limited: Callable[[int], Sequence[str]]
) -> None:
    limit_bytes, row_bytes = 600 << 20, 4 * WIDTH
    num_rows = 4 * limit_bytes // row_bytes
    path = tmp_path / "features.npy"
    rows = np.arange(0, num_rows, EVERY)
    header = npy_header("float32", (num_rows, WIDTH))
    with path.open("wb") as file:
        os.pwrite(file.fileno(), header, 0)
        # The file has holes, which are read like data.
        for row in rows.tolist():
            os.pwrite(file.fileno(), np.full(WIDTH, row, np.float32).tobytes(), len(header) + row * row_bytes)
        os.ftruncate(file.fileno(), len(header) + num_rows * row_bytes)
    command = [sys.executable, "-m", "tests.runtime.tiered.budget_driver", str(path), cache, "10%", str(num_rows)]
    ended = subprocess.run([*limited(limit_bytes), *command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["wrong"] == 0
    assert told["hot"] > 0
    # Beside the hot tier: the order of hotness and its check, and a few batches.
    batches_bytes = 8 * 20_000 * row_bytes
    assert told["above_bytes"] <= told["hot_bytes"] + 16 * num_rows + batches_bytes

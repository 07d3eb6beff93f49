"""Scattered rows: what the compiled reads give is what the file holds, in few reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sagann.errors import DatasetError
from sagann.storage import scattered
from sagann.storage.scattered import GAP_BYTES, read_scattered

OFFSET = 131
"The rows begin at any byte of the file."


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scattered") / "rows.bin"
    path.write_bytes(bytes(OFFSET) + np.random.default_rng(0).bytes(1 << 20))
    return path


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 7, 8, 400, 4096, 70_000]), st.sampled_from([0, 1, 3, 2000]))
@settings(max_examples=60)
def test_rows_in_any_order_go_to_any_places(path: Path, seed: int, row_bytes: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    num_rows = (1 << 20) // row_bytes
    # Near the beginning, so that rows lie close together, and some twice.
    ids = (num_rows * generator.random(count) ** 2).astype(np.int64)
    places = generator.permutation(count + 5)[:count]
    target = np.full((count + 5, row_bytes), 77, np.uint8)
    content = np.fromfile(path, np.uint8)[OFFSET : OFFSET + num_rows * row_bytes].reshape(num_rows, row_bytes)
    expected = target.copy()
    expected[places] = content[ids]
    with path.open("rb") as file:
        reads = read_scattered(file.fileno(), OFFSET, ids, target, places)
    assert (target == expected).all()
    distinct = len(set(ids.tolist()))
    assert reads.num_reads <= distinct
    assert distinct * row_bytes <= reads.num_bytes <= num_rows * row_bytes
    assert (reads.num_reads == 0) == (count == 0)


def test_rows_within_the_gap_share_a_read(path: Path) -> None:
    row_bytes = 1024
    most = GAP_BYTES // row_bytes
    # Between two rows of one read lie `most` rows, between the others one more.
    ids = np.array([0, most + 1, 2 * most + 3, 2 * most + 4])
    target = np.zeros((4, row_bytes), np.uint8)
    with path.open("rb") as file:
        reads = read_scattered(file.fileno(), OFFSET, ids, target, np.arange(4))
    assert (reads.num_reads, reads.num_bytes) == (2, (most + 2 + 2) * row_bytes)


def test_reads_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scattered, "READ_BYTES", 10_000)
    ids, target = np.arange(1000), np.zeros((1000, 1000), np.uint8)
    with path.open("rb") as file:
        reads = read_scattered(file.fileno(), OFFSET, ids, target, ids)
    assert (reads.num_reads, reads.num_bytes) == (100, 1_000_000)
    assert (target.reshape(-1) == np.fromfile(path, np.uint8)[OFFSET : OFFSET + 1_000_000]).all()


def test_a_file_that_ends_too_early_is_named(tmp_path: Path) -> None:
    ids = [4, 99, 7]
    path = tmp_path / "rows of vertices.bin"
    path.write_bytes(bytes(100 * 1000 - 1))
    target = np.zeros((len(ids), 1000), np.uint8)
    message = r"file has become shorter: it ends at byte 99999, 1 more are needed \(in .*rows of vertices"
    given = np.array(ids), target, np.arange(len(ids))
    with path.open("rb") as file, pytest.raises(DatasetError, match=message):
        read_scattered(file.fileno(), 0, *given)

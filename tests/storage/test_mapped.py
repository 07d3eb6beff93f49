"""Files that are read where they lie: mapped arrays, scattered rows; and pictures that are written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from sagann.errors import DatasetError
from sagann.storage import picture, scattered
from sagann.storage.mapped import mapped_rows
from sagann.storage.npy import map_npy, write_npy
from sagann.storage.positioned import is_cached
from sagann.storage.scattered import GAP_BYTES, read_scattered

ROWS = torch.arange(3000, dtype=torch.float32).reshape(1000, 3)


@pytest.fixture
def opened(tmp_path: Path) -> torch.Tensor:
    path = tmp_path / "rows of vertices.npy"
    return map_npy(path, write_npy(path, ROWS))


def test_rows_are_those_of_the_map_wherever_the_tensor_begins(opened: torch.Tensor) -> None:
    for tensor in (opened, opened[17:]):
        rows = mapped_rows(tensor)
        for part in (slice(0, 5), slice(3, len(tensor)), slice(4, 4)):
            assert torch.equal(rows.slice(part.start, part.stop), tensor[part])
        for ids in ([0, 7, 8, 900], [8, 7, 7, 0], []):
            chosen = torch.tensor(ids, dtype=torch.int64)
            assert torch.equal(rows.rows(chosen), tensor[chosen])


def test_what_is_not_as_in_a_file_is_not_read_from_one(opened: torch.Tensor) -> None:
    for other in (torch.ones(4, 3), opened[:, :2], opened[:0], opened * 1):
        assert mapped_rows(other) is None
    assert mapped_rows(opened) is not None
    opened[999, 2] = 1
    assert mapped_rows(opened) is None


def test_a_file_that_is_replaced_or_removed_is_still_read(opened: torch.Tensor, tmp_path: Path) -> None:
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.write_bytes(b"other rows")
    rows = mapped_rows(opened)
    del opened
    assert torch.equal(rows.slice(0, 1000), ROWS)


def test_a_file_that_has_become_shorter_is_named(opened: torch.Tensor, tmp_path: Path) -> None:
    rows = mapped_rows(opened)
    (path,) = tmp_path.iterdir()
    os.truncate(path, 5000)
    with pytest.raises(DatasetError, match=r"file has become shorter: it ends at byte 5000, 792 more .*rows of"):
        rows.slice(300, 472)


def test_the_file_is_closed_with_its_last_reader(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    tensor = map_npy(tmp_path / "x.npy", write_npy(tmp_path / "x.npy", ROWS))
    rows = mapped_rows(tensor)
    del tensor
    assert descriptors() == before + 1
    del rows
    assert descriptors() == before


BYTES = 4 << 20


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(BYTES))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.pread(descriptor, BYTES, 0)
    # By the system itself, so that a cache that is never found is no reason to skip.
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except (AttributeError, OSError) as error:
        pytest.skip(f"this system does not tell what is cached: {error}")
    assert is_cached(descriptor, 0, BYTES)
    yield descriptor
    os.close(descriptor)


def evict(file: int) -> None:
    """The system lets go of what was written a moment ago when it likes to."""
    for _ in range(200):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        if not is_cached(file, 0, BYTES):
            return
        time.sleep(0.01)


def test_a_file_that_was_read_is_cached_and_one_that_was_evicted_is_not(file: int) -> None:
    evict(file)
    assert not is_cached(file, 0, BYTES)
    assert len(os.pread(file, BYTES, 0)) == BYTES
    assert is_cached(file, 0, BYTES)


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


def test_a_figure_replaces_a_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "figure.png"
    path.write_text("old")
    figure = picture.new_figure(2, 1, feature="a picture")
    figure.subplots().plot([0, 1])
    picture.write_figure(path, figure)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [entry.name for entry in tmp_path.iterdir()] == ["figure.png"]

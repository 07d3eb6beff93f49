"""Mapped: positioned reads give what the map holds, or are not offered; what is cached is known without reading."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sagann.errors import DatasetError
from sagann.storage.file_cache import is_cached
from sagann.storage.mapped import mapped_rows
from sagann.storage.npy import map_npy, write_npy

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

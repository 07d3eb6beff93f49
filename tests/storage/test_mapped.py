"""Mapped: positioned reads give what the map holds, or are not offered; what is cached is known without reading."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from sagann.errors import DatasetError
from sagann.storage.file_cache import is_cached
from sagann.storage.mapped import mapped_rows

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows of vertices.npy"
    np.save(path, np.arange(3000, dtype=np.float32).reshape(1000, 3))
    return path


def opened(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def test_rows_are_those_of_the_map_wherever_the_tensor_begins(path: Path) -> None:
    for tensor in (opened(path), opened(path)[17:], opened(path)[:, :1].reshape(-1)[:0]):
        rows = mapped_rows(tensor)
        if not tensor.numel():
            assert rows is None
            continue
        for part in (slice(0, 5), slice(3, len(tensor)), slice(4, 4)):
            assert torch.equal(rows.slice(part.start, part.stop), tensor[part])
        for ids in ([0, 7, 8, 900], [8, 7, 7, 0], []):
            chosen = torch.tensor(ids, dtype=torch.int64)
            assert torch.equal(rows.rows(chosen), tensor[chosen])


def test_what_is_not_as_in_a_file_is_not_read_from_one(path: Path, tmp_path: Path) -> None:
    assert mapped_rows(torch.ones(4, 3)) is None
    assert mapped_rows(opened(path)[:, :2]) is None
    written = opened(path)
    written.numpy()[999, 2] = 1
    assert mapped_rows(written) is None
    assert mapped_rows(opened(path)) is not None
    replaced = opened(path)
    other = tmp_path / "other.npy"
    shutil.copy(path, other)
    os.replace(other, path)
    assert mapped_rows(replaced) is None
    gone = opened(path)
    path.unlink()
    assert mapped_rows(gone) is None


def test_a_file_whose_name_is_no_text_is_read_too(path: Path) -> None:
    odd = path.with_name("rows \udcff.npy")
    path.rename(odd)
    tensor = opened(odd)
    rows = mapped_rows(tensor)
    assert torch.equal(rows.slice(5, 9), tensor[5:9])


def test_a_file_that_has_become_shorter_is_named(path: Path) -> None:
    tensor = opened(path)
    rows = mapped_rows(tensor)
    assert rows is not None
    os.truncate(path, 5000)
    with pytest.raises(
        DatasetError, match=r"array file has become shorter: it ends at byte 5000, 996 more .*rows of"
    ):
        rows.slice(300, 489)


def test_the_file_is_closed_with_its_reader(path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    tensor, before = opened(path), descriptors()
    rows = mapped_rows(tensor)
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

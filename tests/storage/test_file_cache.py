"""What the system's cache has of a file is known without reading it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sagann.storage.file_cache import is_cached

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

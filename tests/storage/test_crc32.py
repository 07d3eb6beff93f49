"""Every implementation of CRC-32 gives zlib's numbers: datasets are read on other systems than they were written on."""

from __future__ import annotations

import sys
import zlib

import numpy as np
import pytest

from sagann.storage import crc32 as module
from sagann.storage.crc32 import crc32


@pytest.mark.parametrize("size", [0, 1, 17, 1_000_003])
def test_checksums_are_those_of_zlib(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert crc32(data) == zlib.crc32(data)
    for cut in (0, size // 3, size):
        assert crc32(data[cut:], crc32(data[:cut])) == zlib.crc32(data)


def test_unaligned_memory() -> None:
    data = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)
    assert [crc32(data[start:]) for start in range(64)] == [zlib.crc32(data[start:]) for start in range(64)]


def test_without_isal_zlib_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._fastest() is not zlib.crc32
    monkeypatch.setitem(sys.modules, "isal", None)
    assert module._fastest() is zlib.crc32

"""The checksum of memory: whatever differs is found."""

from __future__ import annotations

import numpy as np
import pytest

from sagann.kernels.checksum import checksum


def drawn(num_bytes: int, seed: int) -> np.ndarray:
    """Bytes at random, of which the last is not the first."""
    memory = np.random.default_rng(seed).integers(256, size=num_bytes, dtype=np.uint8)
    if num_bytes > 1:
        memory[-1] = memory[0] ^ 0xFF
    return memory


@pytest.mark.parametrize("num_bytes", [1, 7, 8, 9, 1023, 1024, 1025, 5000])
def test_a_changed_bit_is_found(num_bytes: int) -> None:
    memory = drawn(num_bytes, seed=num_bytes)
    expected = checksum(memory)
    for at in {0, num_bytes // 2, num_bytes - 1}:
        for bit in range(8):
            memory[at] ^= 1 << bit
            assert checksum(memory) != expected
            memory[at] ^= 1 << bit
    assert checksum(memory) == expected


def test_words_and_kilobytes_that_change_places_are_found() -> None:
    memory = drawn(8192, seed=1)
    expected = checksum(memory)
    for size in (1, 4, 8, 1024, 4096):
        swapped = memory.copy()
        swapped[:size], swapped[-size:] = memory[-size:], memory[:size]
        assert not np.array_equal(swapped, memory)
        assert checksum(swapped) != expected
    # Signs of two numbers: what a product modulo a power of two would lose.
    swapped = memory.copy()
    swapped[[7, 15]] ^= 0x80
    assert checksum(swapped) != expected


def test_lengths_and_beginnings_count() -> None:
    zeros = np.zeros(4096, np.uint8)
    assert len({checksum(zeros[:size]) for size in range(0, 4096, 5)}) == len(range(0, 4096, 5))
    assert checksum(zeros, 1) != checksum(zeros, 2)


def test_an_address_may_be_odd() -> None:
    memory = drawn(3001, seed=2)
    assert checksum(memory[1:]) == checksum(memory[1:].copy())

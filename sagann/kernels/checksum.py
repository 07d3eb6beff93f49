"""Checksum of memory, about as fast as the memory is read, by one thread that does not hold Python's lock.

Each kilobyte is hashed with a fixed table of random keys, by NH: half words are added to halves of keys, and multiplied in
pairs. Two different kilobytes have the same hash for one in 2^32 tables. The hashes are chained by steps that are each
one-to-one, so that a single kilobyte that differs is lost by no later step. It finds what was damaged or overwritten, not
what was forged.

References:
    Black, Halevi, Krawczyk, Krovetz and Rogaway, UMAC: Fast and Secure Message Authentication, CRYPTO 1999, Sec. 4: NH.
"""

from __future__ import annotations

import numpy as np

from sagann.machine_code import compiled

_WORDS = 128
"Of 64 bits in a kilobyte, and keys."
_WORD_BYTES = 8
_LOW_HALF, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
# Odd, so that a product with it can be undone.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_KEYS = np.random.default_rng(0).integers(2**64, size=_WORDS, dtype=np.uint64)


def checksum(memory: np.ndarray, start: int = 0) -> int:
    """The checksum of some bytes, 64 bits.

    Args:
        memory: uint8 [num_bytes], contiguous.
        start: the checksum of what comes before them.

    Example:
        >>> a, b = np.arange(5000, dtype=np.uint8), np.ones(9, dtype=np.uint8)
        >>> checksum(b, checksum(a)) == checksum(b, checksum(a.copy()))
        True
        >>> checksum(b, checksum(a)) == checksum(a, checksum(b))
        False
    """
    num_whole = len(memory) // _WORD_BYTES * _WORD_BYTES
    # The length tells apart what zeros at the end would not.
    found = _chained(memory[:num_whole].view(np.uint64), _KEYS, np.uint64(start ^ len(memory)))
    if num_whole < len(memory):
        rest = np.zeros(_WORD_BYTES, np.uint8)
        rest[: len(memory) - num_whole] = memory[num_whole:]
        found = _chained(rest.view(np.uint64), _KEYS, np.uint64(found))
    return int(found)


@compiled()
def _chained(words: np.ndarray, keys: np.ndarray, start: np.uint64) -> np.uint64:
    found = start
    for first in range(0, len(words), _WORDS):
        part = words[first : first + _WORDS]
        total = np.uint64(0)
        for position in range(len(part)):
            word, key = part[position], keys[position]
            total += ((word + key) & _LOW_HALF) * (((word >> _HALF) + (key >> _HALF)) & _LOW_HALF)
        found = (found ^ total) * _STEP
        found ^= found >> _HALF
    return found

"""Checksum of memory: one thread, without Python's lock, about as fast as the memory can be read.

The checksum finds damaged or overwritten bytes, not forged ones. Each kilobyte is hashed by NH with a fixed table of random
keys: half words are added to halves of keys, and multiplied in pairs. Two different kilobytes have the same hash for one in 2^32
tables. The hashes are chained by one-to-one steps, so no later step hides a single kilobyte that differs.

References:
    Black, Halevi, Krawczyk, Krovetz and Rogaway, UMAC: Fast and Secure Message Authentication, CRYPTO 1999, Sec. 4: NH.
"""

from __future__ import annotations

import numpy as np

from sagann.jit import compiled

_WORDS = 128
"Number of 64-bit words in a kilobyte, and of keys."
_WORD_BYTES = 8
_LOW_HALF, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
# Odd, so that a product with it can be undone.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_KEYS = np.random.default_rng(0).integers(2**64, size=_WORDS, dtype=np.uint64)


def checksum(memory: np.ndarray, start: int = 0) -> int:
    """The 64-bit checksum of bytes, uint8 [num_bytes] and contiguous; ``start`` is the checksum of the bytes before.

    Example:
        >>> a, b = np.arange(5000, dtype=np.uint8), np.ones(9, dtype=np.uint8)
        >>> checksum(b, checksum(a)) == checksum(b, checksum(a.copy()))
        True
        >>> checksum(b, checksum(a)) == checksum(a, checksum(b))
        False
    """
    num_whole = len(memory) // _WORD_BYTES * _WORD_BYTES
    # The length distinguishes memory from the same memory with zeros at the end.
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

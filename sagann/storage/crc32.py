"""CRC-32 of bytes, with the polynomial of zlib: by the package isal where it is installed, else by zlib itself.

isal takes less than half of zlib's time. It has no wheels for some systems, so sagann does without it there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

_Crc32 = Callable[[Any, int], int]


def _fastest() -> _Crc32:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    return isal_zlib.crc32


_crc32 = _fastest()


def crc32(data: Any, value: int = 0) -> int:
    """The CRC-32 of an object's bytes, after bytes whose CRC-32 is ``value``.

    Args:
        data: supports the buffer protocol, contiguous.
        value: the CRC-32 of what came before.
    Example:
        >>> crc32(b"sampled ", 0) == 0
        False
        >>> crc32(b"rows", crc32(b"sampled ")) == crc32(b"sampled rows")
        True
    """
    return _crc32(data, value)

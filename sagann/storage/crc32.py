"""CRC-32 of bytes, with the polynomial of zlib.

The package isal takes less than half of zlib's time. It has no wheels for some systems, so sagann does without it there.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]

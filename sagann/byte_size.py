"""Sizes in words: '256MiB', '1.5 GiB', '4096'."""

from __future__ import annotations

import re

from sagann.errors import InputError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)")


def parse_bytes(text: str, *, where: str) -> int:
    """Read a size in bytes.

    Args:
        text: a number with a unit or without.
        where: the option, for the error.
    Raises:
        InputError: it is no size.
    Example:
        >>> parse_bytes("256MiB", where="--memory"), parse_bytes("1.5 kB", where="--memory")
        (268435456, 1500)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise InputError(
            "size is not understood",
            value=f"'{text[:40]}'",
            where=where,
            fix="Write a number and a unit, as 256MiB or 2GB.",
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])

"""Sizes in bytes as people write them: '256MiB', '1.5 GiB', '4194304'."""

from __future__ import annotations

import re

from sagann.errors import InputError
from sagann.ranges import RANGES

_UNITS = {
    "": 1,
    "b": 1,
    "bytes": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_LEAST_BARE = 2**20
"Least number, apart from 0, that is taken for bytes where no unit stands beside it: a smaller one is surely meant as MiB or GiB."
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)")


def parse_bytes(text: str, *, where: str) -> int:
    """Read a size in bytes: a number and a unit. The unit of a large number, and of 0, may be left out.

    Example:
        >>> parse_bytes("256MiB", where="--memory"), parse_bytes("1.5 kB", where="--memory")
        (268435456, 1500)
    """
    match = _SIZE.fullmatch(text.strip())
    number, unit = match.groups() if match else ("", "")
    size = int(float(number or 0) * _UNITS.get(unit.lower(), 0))
    is_bare = bool(number) and not unit and 0 < size < _LEAST_BARE
    if match is None or unit.lower() not in _UNITS or is_bare:
        meant = f"{unit.upper()}iB" if f"{unit.lower()}ib" in _UNITS else "MiB"
        raise InputError(
            f"size is not understood: '{text[:40]}'{' has no unit' * is_bare} (in {where})",
            hint=f"Write a number and a unit, as {f'{number}{meant}' if number else '256MiB or 2GB'}.",
        )
    if size not in RANGES["bytes"]:
        raise InputError(
            f"size is out of range: '{text[:40]}' in bytes, expected {RANGES['bytes']} (in {where})",
            hint="Write a smaller size, as 256MiB or 2GB.",
        )
    return size


def with_exact(count: int) -> str:
    """Write a number of bytes with a unit, and exactly, as options take it.

    Example:
        >>> with_exact(3250585), with_exact(12)
        ('3.1 MiB (3250585 bytes)', '12 bytes')
    """
    exact = f"{count} bytes"
    return exact if count < 1024 else f"{format_bytes(count)} ({exact})"


def format_bytes(count: int | None) -> str:
    """Write a number of bytes with a unit.

    Example:
        >>> format_bytes(512), format_bytes(3 * 2**30 + 2**29), format_bytes(None)
        ('512 B', '3.5 GiB', 'unknown')
    """
    if count is None:
        return "unknown"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"

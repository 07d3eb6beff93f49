"""The size of the hot tier: bytes, a part of the rows, or what is free."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

from sagann.byte_size import format_bytes, parse_bytes
from sagann.errors import InputError, require_type, shown
from sagann.free_space import Room, host_room
from sagann.ranges import require_integer

HotSize: TypeAlias = int | float | str
"""Size of a hot tier: an int is a number of bytes, a float from 0.0 to 1.0 a part of the rows; a str is either of them, as "2GiB", "10%"
or "0.1", or "auto"."""

AUTO_SHARE = 2
'"auto" takes the free memory divided by this number. The rest is for what the training step and the loader need.'
_WHERE, _HINT = "hot", 'Give a size as 2GiB, a part of the rows as 10% or 0.1, or "auto".'
_SHARE = re.compile(r"([-+]?\d{1,18}(?:\.\d{1,18})?)\s*%|(0|\d?\.\d{1,18})")


def hot_rows(
    hot: HotSize, *, num_rows: int, row_bytes: int, state_bytes: Callable[[int], int], room: Room | None = None
) -> int:
    """The number of rows that a hot tier of some size has room for, at most ``num_rows``.

    A size in bytes is that of the rows and of the tables that find them (``state_bytes``). A part counts rows alone.

    Raises:
        InputError: the size is not understood, is not free, is larger than the whole memory, or is smaller than the tables.
    """
    found = parse_hot(hot)
    room = host_room() if room is None else room
    if found is None:
        if room.free_bytes is None:
            raise InputError(
                f"free memory is unknown: this system does not tell it (in {_WHERE}='auto')",
                hint='Pass a size, as "2GiB" or "10%".',
            )
        found = room.free_bytes // AUTO_SHARE
    if isinstance(found, float):
        slots = int(found * num_rows)
        needed_bytes = slots * row_bytes + state_bytes(slots)
        room.require(needed_bytes, where=f"{_WHERE}={shown(hot)}", hint="Choose a smaller hot tier.")
        return slots
    if room.total_bytes is not None and found > room.total_bytes:
        raise InputError(
            f"hot tier is larger than {room.name}: {format_bytes(found)}, there are "
            f"{format_bytes(room.total_bytes)} in all (in {_WHERE}={shown(hot)})",
            hint="Choose a smaller hot tier, or 100% for all rows.",
        )
    slots = bisect_right(range(num_rows + 1), found, key=lambda count: count * row_bytes + state_bytes(count)) - 1
    if slots < 0:
        raise InputError(
            f"hot tier is smaller than its tables: {format_bytes(found)}, but tables of {num_rows} rows take "
            f"{format_bytes(state_bytes(0))} (in {_WHERE}={shown(hot)})",
            hint="Give the hot tier more bytes, or none by 0%.",
        )
    room.require(
        slots * row_bytes + state_bytes(slots), where=f"{_WHERE}={shown(hot)}", hint="Choose a smaller hot tier."
    )
    return slots


def parse_hot(hot: HotSize, *, where: str = _WHERE) -> int | float | None:
    """The size as a number of bytes (int) or as a part of the rows (float); None for "auto". Another one is an InputError."""
    require_type(hot, (int, float, str), where=where, hint=_HINT)
    if isinstance(hot, int):
        require_integer(hot, "bytes", where=where)
        return hot
    part = hot
    if isinstance(part, str):
        if part.strip() == "auto":
            return None
        if (share := _SHARE.fullmatch(part.strip())) is None:
            try:
                return parse_bytes(part, where=where)
            except InputError as error:
                raise InputError(error.message, hint=_HINT) from error
        part = float(share[1]) / 100 if share[1] else float(share[2])
    if not 0.0 <= part <= 1.0:
        raise InputError(
            f"part out of range: {shown(hot)}, expected 0.0 to 1.0, or 0% to 100% (in {where})", hint=_HINT
        )
    return part

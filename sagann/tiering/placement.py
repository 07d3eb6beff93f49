"""Placement of hot rows on several devices: which rows lie where, and from where each device reads them.

Rows are counted by rank, the hottest first. Devices of which each pair is linked form a group. The hottest rows of a group are replicated
on each of its devices, the next ones interleaved, so every device has as many of the very hot rows as any other one. Groups share nothing.

References:
    Min et al., Graph Neural Network Training with Data Tiering, 2021, Sec. 4.2. We differ in that devices may differ in room: where one is
    full, the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sagann.errors import InputError
from sagann.jit import Array


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LinkedGroup:
    """Hot rows of devices that read each other's memory."""

    devices: tuple[int, ...]
    "Numbers of the devices, ascending."
    num_replicated: int
    "Number of the hottest rows, which lie on each of the devices, in slots of their rank."
    owner: Array
    "int64 [num_interleaved]: number of the device of each of the next rows, by rank."
    slot: Array
    "int64 [num_interleaved]: slot of each of these rows on its device."

    @property
    def num_hot_rows(self) -> int:
        """Number of rows that lie on the devices, a replicated one counted once."""
        return self.num_replicated + len(self.owner)

    def seen_from(self, device: int) -> tuple[Array, Array]:
        """For each hot row, by rank: number of the device that ``device`` reads it from, and its slot there; int64 [num_hot_rows]."""
        own = np.full(self.num_replicated, device, np.int64)
        return np.concatenate([own, self.owner]), np.concatenate(
            [np.arange(self.num_replicated, dtype=np.int64), self.slot]
        )

    def held_by(self, device: int) -> Array:
        """Ranks of the rows in the slots of a device: int64 [num_slots]."""
        interleaved = (self.owner == device).nonzero()[0] + self.num_replicated
        return np.concatenate([np.arange(self.num_replicated, dtype=np.int64), interleaved])


def place_hot_rows(
    num_slots: Sequence[int],
    *,
    num_rows: int,
    replicated: float = 0.0,
    linked: Callable[[int, int], bool] = lambda first, second: True,
) -> tuple[LinkedGroup, ...]:
    """Place the hottest rows on devices, each with its number of slots, in groups of devices that read each other's memory.

    A device joins the first group with all of whose members it is ``linked``. All devices of a group hold the hottest rows: ``replicated`` is their
    part, 0 to 1, of the slots of the smallest device of the group.

    Example:
        >>> (group,) = place_hot_rows([3, 3], num_rows=100, replicated=0.34)
        >>> devices, slots = group.seen_from(0)
        >>> devices.tolist(), slots.tolist()
        ([0, 0, 1, 0, 1], [0, 1, 1, 2, 2])
        >>> group.held_by(1).tolist()
        [0, 2, 4]
    """
    if not 0.0 <= replicated <= 1.0:
        raise InputError(
            f"part out of range: {replicated}, expected 0.0 to 1.0 (in replicated)",
            hint="Give the part of each device's hot rows that all linked devices hold.",
        )
    groups = linked_groups(len(num_slots), linked)
    return tuple(_placed(group, num_slots, num_rows, replicated) for group in groups)


def linked_groups(count: int, linked: Callable[[int, int], bool]) -> list[list[int]]:
    """Numbers of devices in groups of which each pair is linked: a device joins the first group with all of whose members it is."""
    groups: list[list[int]] = []
    for device in range(count):
        own = next((group for group in groups if all(linked(device, member) for member in group)), None)
        if own is None:
            groups.append([device])
        else:
            own.append(device)
    return groups


def _placed(devices: Sequence[int], num_slots: Sequence[int], num_rows: int, replicated: float) -> LinkedGroup:
    shared = min(num_rows, int(replicated * min(num_slots[device] for device in devices)))
    # No device has more rows of its own than are left.
    rooms = [min(num_slots[device], num_rows) - shared for device in devices]
    turn = np.concatenate([np.arange(room, dtype=np.int64) for room in rooms])
    position = np.repeat(np.arange(len(devices)), rooms)
    # In each turn, every device that has room left gets one row.
    order = np.lexsort((position, turn))[: num_rows - shared]
    return LinkedGroup(
        devices=tuple(devices),
        num_replicated=shared,
        owner=np.asarray(devices, np.int64)[position[order]],
        slot=turn[order] + shared,
    )

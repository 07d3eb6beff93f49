"""Links: ways between the memories of a machine, and the switches that they share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sagann.errors import InputError

Refuse = Callable[[str, Any, str], InputError]
"The error of a table's entry: its name, its value, and what it should be."


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A way between two memories, for one transfer at a time."""

    bytes_per_s: float
    "Rate of a transfer that shares no switch."
    latency_s: float = 0.0
    "Seconds that a transfer takes before its first byte."
    switches: tuple[str, ...] = ()
    "Names of the switches and roots that its transfers go through."

    def as_table(self) -> dict[str, Any]:
        """The entries of its TOML table."""
        return {"bytes_per_s": self.bytes_per_s, "latency_s": self.latency_s, "switches": self.switches}


def read_links(given: object, switches: Mapping[str, float], refuse: Refuse) -> dict[str, Link]:
    """Read the table of links.

    Args:
        given: by name of the resource, the table of a link.
        switches: those that there are.
        refuse: makes errors.
    Raises:
        InputError: it is no such table, or a link goes through a switch that there is not.
    """
    links = {}
    for name, entries in _table("links", given, refuse).items():
        link = _table(f"links.{name}", entries, refuse)
        if unknown := sorted(set(link) - {"bytes_per_s", "latency_s", "switches"}):
            raise refuse(f"links.{name}.{unknown[0]}", link[unknown[0]], "one of bytes_per_s, latency_s, switches")
        through = link.get("switches", [])
        if not isinstance(through, list) or not all(each in switches for each in through):
            raise refuse(f"links.{name}.switches", through, "a list of names of [switches]")
        latency_s = link.get("latency_s", 0.0)
        links[name] = Link(
            bytes_per_s=_rate(f"links.{name}.bytes_per_s", link.get("bytes_per_s"), refuse),
            latency_s=_rate(f"links.{name}.latency_s", latency_s, refuse) if latency_s != 0 else 0.0,
            switches=tuple(through),
        )
    return links


def read_switches(given: object, refuse: Refuse) -> dict[str, float]:
    """Read the table of switches: bytes per second by name.

    Raises:
        InputError: it is no such table.
    """
    return {
        name: _rate(f"switches.{name}", value, refuse) for name, value in _table("switches", given, refuse).items()
    }


def read_devices(given: object, names: frozenset[str], refuse: Refuse) -> dict[str, dict[str, float]]:
    """Read the table of devices: by name, the rates that differ from those of device0.

    Args:
        given: the table.
        names: of rates.
        refuse: makes errors.
    Raises:
        InputError: it is no such table.
    """
    devices = {}
    for name, entries in _table("devices", given, refuse).items():
        device = _table(f"devices.{name}", entries, refuse)
        if unknown := sorted(set(device) - names):
            raise refuse(f"devices.{name}.{unknown[0]}", device[unknown[0]], "a rate, as device0 has it")
        devices[name] = {each: _rate(f"devices.{name}.{each}", value, refuse) for each, value in device.items()}
    return devices


def _table(name: str, given: object, refuse: Refuse) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise refuse(name, given, "a table")
    return given


def _rate(name: str, value: object, refuse: Refuse) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Written so that NaN fails too.
    if not isinstance(value, (int, float)) or not is_number or not 0 < value <= sys.float_info.max:
        raise refuse(name, value, "a positive number")
    return float(value)

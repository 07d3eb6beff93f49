"""Machine: the rates by which a plan's steps become seconds. Probed by ``sagann machine``, or written by hand, as TOML.

Rates are of float32 and of all threads together, unless they say otherwise. They are measured one by one on a machine
that does nothing else: what threads take from one another when they compute and copy at once is not in them.

The lines of a file are the rates of ``device0``, of the copies between it and the host, and of the disk. Tables describe
what else there is::

    [devices.device1]
    matmul_flops = 1e13         # rates that differ from those of device0

    [links.link0-1]
    bytes_per_s = 2.0e10
    latency_s = 1e-5            # 0 by default
    switches = ["root"]         # that its transfers go through; none by default

    [switches]
    root = 3.2e10               # bytes per second, shared equally by the transfers at a time

A link's name is that of the resource which a move occupies. ``[links."device1.copy_in"]`` is the way into a device, in the
place of ``host_to_device_bytes`` and the disk's rates.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from sagann.errors import InputError
from sagann.plan.links import Link, read_devices, read_links, read_switches
from sagann.toml_text import toml_value

UNITS: Mapping[str, str] = MappingProxyType(
    {
        "name": "of the processor",
        "num_cores": "cores",
        "matmul_flops": "float32 operations per second, a multiply-add being two: rows x 512 by 512 x 128",
        "stream_bytes": "bytes read and written per second by pointwise work on arrays beyond the cache",
        "gather_bytes": "bytes of source rows read per second by a sum over edges, rows of 512 bytes, beyond the cache",
        "gather_cached_bytes": "the same, of source rows that lie in the cache",
        "cache_bytes": "bytes of the last-level cache",
        "exp_per_s": "exponentials per second within a pass over edges",
        "copy_bytes": "bytes copied per second from memory to memory",
        "pick_bytes": "bytes of rows, of 512 each, picked per second by one thread, from memory to memory",
        "disk_read_bytes": "bytes read per second by one thread, not from the page cache",
        "file_cache_bytes": "bytes read per second by one thread, from the page cache",
        "disk_write_bytes": "bytes written per second by one thread, until they are on the disk",
        "step_s": "seconds of a pass over a few edges",
        "host_to_device_bytes": "bytes copied per second from pinned memory to the device that computes",
        "device_to_host_bytes": "bytes copied per second from the device to pinned memory",
    }
)
"What each field of a machine is a number of."
_WHOLE = frozenset(["num_cores", "cache_bytes"])
_OF_DEVICES = frozenset(["host_to_device_bytes", "device_to_host_bytes"])
_TABLES = ("devices", "links", "switches")
_ANEW = "`sagann machine --out FILE` writes a whole one."


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine, as far as the seconds of a plan depend on it.

    Raises:
        InputError: a number is not positive and finite, or is none.
    """

    name: str
    "Name of the processor."
    num_cores: int
    "Number of cores that the process may run on."
    matmul_flops: float
    "Floating-point operations per second, a multiply-add being two, of tall products: [rows, 512] by [512, 128]."
    stream_bytes: float
    "Bytes read and bytes written, together, per second by pointwise work on arrays larger than the cache."
    gather_bytes: float
    "Bytes of source rows per second in a fused sum over edges, rows of 512 bytes in an array far larger than the cache."
    gather_cached_bytes: float
    "The same, where the source rows lie in the cache."
    cache_bytes: int
    "Bytes of the last-level cache."
    exp_per_s: float
    "Exponentials per second in a fused pass over edges: what a sigmoid adds to a pass that reads the same."
    copy_bytes: float
    "Bytes copied per second from memory to memory; each is read once and written once."
    pick_bytes: float
    "Bytes per second of rows of 512 bytes that one thread picks, every other one of an array, into another array."
    disk_read_bytes: float
    "Bytes per second that one thread reads at positions of a file that the page cache does not hold."
    file_cache_bytes: float
    "The same, of a file that the page cache holds."
    disk_write_bytes: float
    "Bytes per second that one thread writes at positions of a file, synced at the end."
    step_s: float
    "Seconds that a step costs however little it does: those of a pass over a few edges."
    host_to_device_bytes: float | None = None
    """Bytes per second from pinned memory to the device that computes, whose rates those above are then; None where the
    processor computes."""
    device_to_host_bytes: float | None = None
    "Bytes per second from the device to pinned memory; None where the processor computes."
    devices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    "Rates of other devices, by name, where they differ from those of device0."
    links: Mapping[str, Link] = field(default_factory=dict)
    "Links, by the name of the resource that a move occupies."
    switches: Mapping[str, float] = field(default_factory=dict)
    "Bytes per second of switches and roots, by name."

    def __post_init__(self) -> None:
        for name, value in self._stated().items():
            _checked(name, value, where="Machine")
        if (self.host_to_device_bytes is None) != (self.device_to_host_bytes is None):
            raise _refused(
                "device_to_host_bytes",
                self.device_to_host_bytes,
                "is stated without its counterpart, or missing beside it",
                "Machine",
                "State host_to_device_bytes and device_to_host_bytes both, or neither.",
            )

    def device(self, name: str) -> Machine:
        """The machine as a device sees it: with that device's rates."""
        given: dict[str, Any] = dict(self.devices.get(name, {}))
        return replace(self, **given) if given else self

    def link(self, name: str, *, must_be: bool) -> Link | None:
        """The link that a move occupies; None where there is none of that name.

        Args:
            name: of the resource.
            must_be: whether the copy has no other rate.
        Raises:
            InputError: there is none, and there must be.
        """
        found = self.links.get(name)
        if found is None and must_be:
            raise InputError(
                "a plan occupies a link that the machine has not",
                value=f"'{name}', and the links are {', '.join(self.links) or 'none'}",
                where=self.name,
                fix=f'Add [links."{name}"] with bytes_per_s to the machine\'s file.',
            )
        return found

    def _stated(self) -> dict[str, Any]:
        values = {each: getattr(self, each) for each in UNITS}
        return {name: value for name, value in values.items() if name not in _OF_DEVICES or value is not None}

    def to_toml(self) -> str:
        """The machine as TOML, a line for each field with its unit; :meth:`from_toml` reads the same back."""
        given = {name: _written(value) for name, value in self._stated().items()}
        lines = [f"{name} = {value}  # {UNITS[name]}\n" for name, value in given.items()]
        links = {name: link.as_table() for name, link in self.links.items()}
        tables = {"devices": self.devices, "links": links, "switches": self.switches}
        lines += [f"{name} = {toml_value(table)}\n" for name, table in tables.items() if table]
        return "".join(lines)

    @classmethod
    def from_toml(cls, text: str, *, where: str) -> Machine:
        """Read a machine.

        Args:
            text: TOML with a line for every rate; those of copies to a device, and the tables, may be missing. The order
                does not matter.
            where: the file, for errors.
        Raises:
            InputError: it is no TOML, a field is missing or unknown, or a value is of the wrong kind or not positive.
        Example:
            >>> Machine.from_toml("num_cores = 2", where="machine.toml")
            Traceback (most recent call last):
            ...
            sagann.errors.InputError: a machine lacks a field: 'name' is missing, and 12 more (in machine.toml). \
Add it: of the processor; `sagann machine --out FILE` writes a whole one.
        """
        try:
            given = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                "a machine is not TOML", value=str(error), where=where, fix=f"Mend that line; {_ANEW}"
            ) from error
        tables = {name: given.pop(name, {}) for name in _TABLES}
        names = list(UNITS)
        if unknown := [name for name in given if name not in names]:
            raise InputError(
                "a machine has no such field",
                value=f"'{unknown[0]}'{_and_more(unknown)}",
                where=where,
                fix=f"Remove or rename it; the fields are {', '.join([*names, *_TABLES])}.",
            )
        if missing := [name for name in names if name not in given and name not in _OF_DEVICES]:
            raise InputError(
                "a machine lacks a field",
                value=f"'{missing[0]}' is missing{_and_more(missing)}",
                where=where,
                fix=f"Add it: {UNITS[missing[0]]}; {_ANEW}",
            )
        rates = {name: _checked(name, value, where=where) for name, value in given.items()}

        def refuse(name: str, value: Any, expected: str) -> InputError:
            return _refused(name, value, f"is not {expected}", where, f"Write {expected}.")

        switches = read_switches(tables["switches"], refuse)
        return cls(
            **rates,
            devices=read_devices(tables["devices"], frozenset(UNITS) - _WHOLE - {"name"}, refuse),
            links=read_links(tables["links"], switches, refuse),
            switches=switches,
        )


def _written(value: str | float) -> str:
    # Few digits read better, as 1.796e+11, wherever they are the whole number.
    short = f"{value:.4g}" if isinstance(value, float) else ""
    return short if short and float(short) == value else toml_value(value)


def _and_more(names: list[str]) -> str:
    return f", and {len(names) - 1} more" if len(names) > 1 else ""


def _checked(name: str, value: Any, *, where: str) -> Any:
    """A field's value, as the type that the field has.

    Raises:
        InputError: it is of another kind, or not positive.
    """
    if name == "name":
        if not isinstance(value, str):
            raise _refused(name, value, "is not a text", where, "Put it in quotes.")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refused(name, value, "is not a number", where, f"Write a positive number: {UNITS[name]}.")
    # Written so that NaN fails too.
    if not 0 < value <= sys.float_info.max:
        raise _refused(name, value, "is not positive and finite", where, f"Write a positive number: {UNITS[name]}.")
    if name not in _WHOLE:
        return float(value)
    if value != int(value):
        raise _refused(name, value, "is not a whole number", where, f"Write a whole number: {UNITS[name]}.")
    return int(value)


def _refused(name: str, value: Any, what: str, where: str, fix: str) -> InputError:
    return InputError(f"{name} of a machine {what}", value=repr(value)[:60], where=where, fix=fix)

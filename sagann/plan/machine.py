"""Machine: the rates that turn a plan's steps and copies into seconds. ``sagann machine`` measures them and writes TOML.

Rates are of float32 and of all threads together, unless their text says otherwise. Each is measured alone on an idle machine.
So the rates do not include what threads lose when they compute and copy at the same time.

The lines of a file are the rates of ``device0``, and of copies between it and the host. Tables describe the rest::

    [disks.disk0]               # where device0 keeps files; others are used where a device names them
    read_bytes_per_s = 1.5e9
    cached_bytes_per_s = 5.0e9
    write_bytes_per_s = 1.0e9

    [devices.device1]
    matmul_flops = 1e13         # rates that differ from those of device0
    disk = "disk1"              # where the device keeps files; disk0 by default
    pipelines_layers = true     # whether it sums over edges and maps the sums at the same time; false by default

    [devices.device1.kernel]    # hardware kernels, by whose clock hybrid training is predicted, whatever the rates are
    scatter_pes = 8             # a field of sagann.hardware.KernelDesign; others have its defaults

    [links.link0-1]
    bytes_per_s = 2.0e10
    latency_s = 1e-5            # 0 by default
    switches = ["root"]         # that its transfers go through; none by default

    [switches]
    root = 3.2e10               # bytes per second, shared equally by the transfers at a time

The name of a link is that of the resource that a move occupies. ``[links."device1.copy_in"]`` is the way into a device, in
place of ``host_to_device_bytes`` and the disk's rates.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from sagann.errors import InputError, shown
from sagann.ranges import RANGES
from sagann.toml_text import toml_value

if TYPE_CHECKING:
    from sagann.hardware.design import KernelDesign

DISK = "disk0"
"Disk of device0, and of devices that name no other."
_WHOLE = frozenset(["num_cores", "cache_bytes"])
_OF_DEVICES = frozenset(["host_to_device_bytes", "device_to_host_bytes"])
_PIPELINES, _KERNEL = "pipelines_layers", "kernel"
_TABLES = ("disks", "devices", "links", "switches")
_ANEW = "`sagann machine --out FILE` writes a whole one."


def _unit(text: str) -> dict[str, str]:
    return {"unit": text}


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """A disk, by the rates of one thread at positions of a file. The metadata of a rate is its text in files."""

    read_bytes_per_s: float = field(metadata=_unit("bytes read per second by one thread, not from the page cache"))
    cached_bytes_per_s: float = field(metadata=_unit("bytes read per second by one thread, from the page cache"))
    write_bytes_per_s: float = field(
        metadata=_unit("bytes written per second by one thread, until they are on the disk")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A way between two memories, for one transfer at a time."""

    bytes_per_s: float
    "Bytes per second of a transfer that shares no switch."
    latency_s: float = 0.0
    "Seconds before the first byte of a transfer."
    switches: tuple[str, ...] = ()
    "Names of the switches and roots that transfers go through."


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine, as far as the seconds of a plan depend on it. The metadata of a rate is its text in files.

    Where a device computes, the rates of copies between it and the host are stated, and the other rates are the device's.
    """

    name: str = field(metadata=_unit("of the processor"))
    num_cores: int = field(metadata=_unit("cores"))
    matmul_flops: float = field(
        metadata=_unit("float32 operations per second, a multiply-add being two: rows x 512 by 512 x 128")
    )
    stream_bytes: float = field(
        metadata=_unit("bytes read and written per second by pointwise work on arrays beyond the cache")
    )
    gather_bytes: float = field(
        metadata=_unit(
            "bytes of source rows read per second by a sum over edges, rows of 512 bytes, beyond the cache"
        )
    )
    gather_cached_bytes: float = field(
        metadata=_unit("bytes of source rows read per second by a sum over edges, rows of 512 bytes, in the cache")
    )
    cache_bytes: int = field(metadata=_unit("bytes of the last-level cache"))
    exp_per_s: float = field(metadata=_unit("exponentials per second within a pass over edges"))
    copy_bytes: float = field(metadata=_unit("bytes copied per second from memory to memory"))
    pick_bytes: float = field(
        metadata=_unit("bytes of rows, of 512 each, picked per second by one thread, from memory to memory")
    )
    step_s: float = field(metadata=_unit("seconds of a pass over a few edges"))
    host_to_device_bytes: float | None = field(
        default=None, metadata=_unit("bytes copied per second from pinned memory to the device that computes")
    )
    device_to_host_bytes: float | None = field(
        default=None, metadata=_unit("bytes copied per second from the device to pinned memory")
    )
    disks: Mapping[str, Disk]
    "Disks by name; disk0 is among them."
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name of another device, the rates that differ from those of device0, the name of its disk, whether it pipelines layers, and the sizes of its
    kernels."""
    links: Mapping[str, Link] = field(default_factory=dict)
    "Links by name of the resource that a move occupies."
    switches: Mapping[str, float] = field(default_factory=dict)
    "Bytes per second of switches and roots, by name."

    def device(self, name: str) -> Machine:
        """The machine with the rates of a device in place of those of device0."""
        given: dict[str, Any] = {key: rate for key, rate in self.devices.get(name, {}).items() if key in UNITS}
        return replace(self, **given) if given else self

    def disk_of(self, device: str) -> tuple[str, Disk]:
        """Name and rates of the disk where a device keeps files."""
        name = str(self.devices.get(device, {}).get("disk", DISK))
        return name, self.disks[name]

    def pipelines_layers(self, device: str) -> bool:
        """Whether a device sums over the edges of a layer and maps the sums at the same time, as an FPGA may."""
        return bool(self.devices.get(device, {}).get(_PIPELINES, False))

    def kernel(self, device: str) -> KernelDesign | None:
        """The hardware kernels of a device; None for one that has rates alone."""
        sizes = self.devices.get(device, {}).get(_KERNEL)
        return None if sizes is None else _kernel(sizes, device, self.name)

    def to_toml(self) -> str:
        """The machine as TOML, a line for each rate with its unit; :meth:`from_toml` reads the same back."""
        rates = {name: getattr(self, name) for name in UNITS}
        lines = _lines({name: rate for name, rate in rates.items() if rate is not None}, UNITS)
        tables = {"devices": self.devices, "switches": self.switches}
        tables["links"] = {name: asdict(link) for name, link in self.links.items()}
        lines += [f"{name} = {toml_value(table)}\n" for name, table in tables.items() if table]
        for name, disk in self.disks.items():
            lines += [f"\n[disks.{toml_value(name)}]\n", *_lines(asdict(disk), DISK_UNITS)]
        return "".join(lines)

    @classmethod
    def from_toml(cls, text: str, *, where: str) -> Machine:
        """Read TOML with a line for every rate and a table of disk0, in any order; copies to a device and other tables are optional.

        Raises:
            InputError: the text is not TOML, a field is missing or unknown, or a value is of the wrong kind or not positive.
        Example:
            >>> Machine.from_toml("num_cores = 2", where="machine.toml")
            Traceback (most recent call last):
            ...
            sagann.errors.InputError: a machine lacks a field: 'name' is missing, and 10 more (in machine.toml). \
Add it: of the processor; `sagann machine --out FILE` writes a whole one.
        """
        try:
            given = tomllib.loads(text)
        except ValueError as error:
            raise InputError(
                f"a machine is not TOML: {error} (in {where})", hint=f"Mend that line; {_ANEW}"
            ) from error
        tables = {name: given.pop(name, {}) for name in _TABLES}
        names = list(UNITS)
        if unknown := [name for name in given if name not in names]:
            raise InputError(
                f"a machine has no such field: '{unknown[0]}'{_and_more(unknown)} (in {where})",
                hint=f"Remove or rename it; the fields are {', '.join([*names, *_TABLES])}.",
            )
        missing = [name for name in names if name not in given and name not in _OF_DEVICES]
        if isinstance(tables["disks"], dict) and DISK not in tables["disks"]:
            missing.append(f"disks.{DISK}")
        if missing:
            raise InputError(
                f"a machine lacks a field: '{missing[0]}' is missing{_and_more(missing)} (in {where})",
                hint=f"Add it: {UNITS.get(missing[0], 'a table of rates')}; {_ANEW}",
            )
        rates = {name: _rate(name, value, where) for name, value in given.items()}
        if len(_OF_DEVICES & rates.keys()) == 1:
            raise InputError(
                "a machine states copies to a device or from it alone: "
                f"{', '.join(_OF_DEVICES & rates.keys())} (in {where})",
                hint="State host_to_device_bytes and device_to_host_bytes both, or neither.",
            )
        return cls(**rates, **_Tables(tables, where).read())


UNITS: Mapping[str, str] = {each.name: each.metadata["unit"] for each in fields(Machine) if each.metadata}
"Unit of each rate of device0."
DISK_UNITS: Mapping[str, str] = {each.name: each.metadata["unit"] for each in fields(Disk)}
"Unit of each rate of a disk."


class _Tables:
    """Reads the tables of a machine's file; raises InputError where an entry is not as it should be."""

    def __init__(self, tables: Mapping[str, Any], where: str) -> None:
        self.tables = tables
        self.where = where

    def read(self) -> dict[str, Any]:
        for name, given in self.tables.items():
            self._require_table(name, given)
        disks = {name: self._disk(name) for name in self.tables["disks"]}
        rates = self.tables["switches"]
        switches = {name: _positive(f"switches.{name}", rate, self.where) for name, rate in rates.items()}
        links = {name: self._link(name, switches) for name in self.tables["links"]}
        devices = {name: self._device(name, disks) for name in self.tables["devices"]}
        return {"disks": disks, "switches": switches, "links": links, "devices": devices}

    def _disk(self, name: str) -> Disk:
        given = self._entries("disks", name, DISK_UNITS)
        return Disk(**{each: _positive(f"disks.{name}.{each}", given.get(each), self.where) for each in DISK_UNITS})

    def _link(self, name: str, switches: Collection[str]) -> Link:
        given = self._entries("links", name, ("bytes_per_s", "latency_s", "switches"))
        through, latency_s = given.get("switches", []), given.get("latency_s", 0)
        if not isinstance(through, list) or not all(each in switches for each in through):
            raise self._refused(f"links.{name}.switches", through, "a list of names of [switches]")
        return Link(
            bytes_per_s=_positive(f"links.{name}.bytes_per_s", given.get("bytes_per_s"), self.where),
            latency_s=_positive(f"links.{name}.latency_s", latency_s, self.where) if latency_s != 0 else 0.0,
            switches=tuple(through),
        )

    def _device(self, name: str, disks: Collection[str]) -> dict[str, Any]:
        rates = sorted(UNITS.keys() - _WHOLE - {"name"})
        given = self._entries("devices", name, (*rates, "disk", _PIPELINES, _KERNEL))
        disk = given.get("disk", DISK)
        if disk not in list(disks):
            raise self._refused(f"devices.{name}.disk", disk, "a name of [disks]")
        if not isinstance(pipelines := given.get(_PIPELINES, False), bool):
            raise self._refused(f"devices.{name}.{_PIPELINES}", pipelines, "true or false")
        if _KERNEL in given:
            self._require_table(f"devices.{name}.{_KERNEL}", given[_KERNEL])
            _kernel(given[_KERNEL], name, self.where)
        kept = ("disk", _PIPELINES, _KERNEL)
        return {
            each: value if each in kept else _positive(f"devices.{name}.{each}", value, self.where)
            for each, value in given.items()
        }

    def _entries(self, table: str, name: str, known: Collection[str]) -> dict[str, Any]:
        given: dict[str, Any] = self.tables[table][name]
        self._require_table(f"{table}.{name}", given)
        if unknown := sorted(given.keys() - set(known)):
            raise self._refused(f"{table}.{name}.{unknown[0]}", given[unknown[0]], f"one of {', '.join(known)}")
        return given

    def _require_table(self, name: str, given: object) -> None:
        if not isinstance(given, dict):
            raise self._refused(name, given, "a table")

    def _refused(self, name: str, value: object, expected: str) -> InputError:
        return _refused(name, value, f"is not {expected}", self.where, f"Write {expected}.")


def _kernel(sizes: Mapping[str, object], device: str, where: str) -> KernelDesign:
    # Imported here: few machines have kernels.
    from sagann.hardware.design import KernelDesign

    return KernelDesign().with_sizes(sizes, where=f"{where}, devices.{device}.{_KERNEL}")


def _lines(values: Mapping[str, Any], units: Mapping[str, str]) -> list[str]:
    return [f"{name} = {_written(value)}  # {units[name]}\n" for name, value in values.items()]


def _written(value: str | float) -> str:
    # Few digits read better, as 1.796e+11, wherever they are the whole number.
    short = f"{value:.4g}" if isinstance(value, float) else ""
    return short if short and float(short) == value else toml_value(value)


def _and_more(names: list[str]) -> str:
    return f", and {len(names) - 1} more" if len(names) > 1 else ""


def _rate(name: str, value: Any, where: str) -> Any:
    """The value of a field of UNITS in the type of the field."""
    if name == "name":
        if not isinstance(value, str):
            raise _refused(name, value, "is not a text", where, "Put it in quotes.")
        return value
    number = _positive(name, value, where, f"Write a positive number: {UNITS[name]}.")
    if name not in _WHOLE:
        return number
    if value != int(value) or int(value) not in RANGES[name]:
        raise _refused(name, value, f"is not {RANGES[name]}", where, f"Write {RANGES[name]}: {UNITS[name]}.")
    return int(value)


def _positive(name: str, value: object, where: str, hint: str = "Write a positive number.") -> float:
    # Written so that NaN fails too.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        raise _refused(name, value, "is not a positive number", where, hint)
    return float(value)


def _refused(name: str, value: object, what: str, where: str, hint: str) -> InputError:
    return InputError(f"{name} of a machine {what}: {shown(value, 60)} (in {where})", hint=hint)

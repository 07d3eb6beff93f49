"""The rates of a machine as a table, for ``sagann machine``."""

from __future__ import annotations

from rich.table import Table

from sagann.byte_size import format_bytes
from sagann.plan.machine import Machine
from sagann.report.terminal import facts_table


def machine_table(machine: Machine) -> Table:
    """A row for each rate of a machine."""
    rows = {
        "cores": str(machine.num_cores),
        "last-level cache": format_bytes(machine.cache_bytes),
        "matrix products": _counted(machine.matmul_flops, "FLOP"),
        "pointwise work": f"{_bytes(machine.stream_bytes)} read and written",
        "sums over edges": f"{_bytes(machine.gather_bytes)} of rows in memory, "
        f"{_bytes(machine.gather_cached_bytes)} of rows in the cache",
        "exponentials on edges": _counted(machine.exp_per_s, ""),
        "copies": f"{_bytes(machine.copy_bytes)}; of rows picked here and there, by one thread, {_bytes(machine.pick_bytes)}",
        "a step, however small": f"{1e6 * machine.step_s:.0f} µs",
    }
    for name, disk in machine.disks.items():
        read, cached, written = map(
            _bytes, (disk.read_bytes_per_s, disk.cached_bytes_per_s, disk.write_bytes_per_s)
        )
        rows[f"disk {name}"] = f"{read} read, {written} written; {cached} read from the page cache"
    if machine.host_to_device_bytes is not None and machine.device_to_host_bytes is not None:
        rows["copies to and from the device"] = (
            f"{_bytes(machine.host_to_device_bytes)} to it, {_bytes(machine.device_to_host_bytes)} from it"
        )
    table = facts_table(f"Rates of {machine.name}")
    for name, rate in rows.items():
        table.add_row(name, rate)
    return table


def _bytes(rate: float) -> str:
    return f"{format_bytes(round(rate))}/s"


def _counted(rate: float, unit: str) -> str:
    """A rate with a decimal prefix.

    Example:
        >>> _counted(4.32e11, "FLOP"), _counted(1.5e9, "")
        ('432.0 GFLOP/s', '1.5 G/s')
    """
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if rate >= size:
            return f"{rate / size:.1f} {prefix}{unit}/s"
    return f"{rate:.0f} {unit}/s"

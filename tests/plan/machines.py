"""A machine with round numbers."""

from __future__ import annotations

from dataclasses import replace

from sagann.plan.machine import Disk, Machine

ROUND = Machine(
    name="round numbers",
    num_cores=2,
    matmul_flops=1e9,
    stream_bytes=1e9,
    gather_bytes=1e8,
    gather_cached_bytes=1e9,
    cache_bytes=1 << 20,
    exp_per_s=1e9,
    copy_bytes=1e3,
    pick_bytes=500.0,
    step_s=1e-12,
    disks={"disk0": Disk(read_bytes_per_s=1e2, cached_bytes_per_s=250.0, write_bytes_per_s=50.0)},
)


def with_disk(machine: Machine, **rates: float) -> Machine:
    """The machine with other rates of its disk."""
    return replace(machine, disks={"disk0": replace(machine.disks["disk0"], **rates)})

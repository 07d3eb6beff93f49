"""A machine with round numbers."""

from __future__ import annotations

from sagann.plan.machine import Machine

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
    disk_read_bytes=1e2,
    file_cache_bytes=250.0,
    disk_write_bytes=50.0,
    step_s=1e-12,
)

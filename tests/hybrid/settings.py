"""A machine of round figures and a job on it, for tests of hybrid training."""

from __future__ import annotations

from typing import Any

from sagann.hybrid.assignment import HOST, Assignment, Threads
from sagann.hybrid.forecast import AS_PRINTED, BatchCounts, Job, Widths
from sagann.plan.machine import DISK, Disk, Link, Machine

FIRST, SECOND = "accelerator0", "accelerator1"


def machine(**changes: Any) -> Machine:
    """Eight cores and two accelerators of round rates."""
    rates: dict[str, Any] = {
        "name": "round figures",
        "num_cores": 8,
        "matmul_flops": 2e9,
        "stream_bytes": 1e9,
        "gather_bytes": 1e9,
        "gather_cached_bytes": 1e9,
        "cache_bytes": 1 << 20,
        "exp_per_s": 1e9,
        "copy_bytes": 1e9,
        "pick_bytes": 1e8,
        "step_s": 0.001,
        "disks": {DISK: Disk(read_bytes_per_s=1e9, cached_bytes_per_s=1e9, write_bytes_per_s=1e9)},
        "devices": {
            FIRST: {"matmul_flops": 4e9, "gather_bytes": 4e9, "pipelines_layers": True},
            SECOND: {"matmul_flops": 4e9, "gather_bytes": 2e9},
        },
        "links": {f"{name}.copy_in": Link(bytes_per_s=1e8) for name in (FIRST, SECOND)},
    }
    return Machine(**(rates | changes))


def job(on: Machine | None = None, **changes: Any) -> Job:
    """Every vertex has ten in-edges; two layers, without deduplication: 10 + 110 edges for a seed, 121 vertices of layer 0, 11 of layer 1."""
    given: dict[str, Any] = {
        "machine": on or machine(),
        "counts": lambda seeds: BatchCounts(
            vertices=(121.0 * seeds, 11.0 * seeds, float(seeds)), edges=(110.0 * seeds, 10.0 * seeds)
        ),
        "num_train": 10_000,
        "widths": Widths(features=(25, 10, 5)),
        "sampled_edges_per_s": 1e6,
        "refinements": AS_PRINTED,
    }
    return Job(**(given | changes))


def assignment(host: int = 100, *others: int, sample: int = 2, load: int = 2, train: int = 4) -> Assignment:
    """Seeds of the processor and of the accelerators, and threads."""
    seeds = {HOST: host} | {f"accelerator{number}": count for number, count in enumerate(others or (100,))}
    return Assignment(seeds=seeds, threads=Threads(sample=sample, load=load, train=train))

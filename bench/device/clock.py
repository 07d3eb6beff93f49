"""Seconds and bytes of work on a device, by the host's clock: nothing is under way when it starts and when it stops."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch


def finish(device: torch.device) -> None:
    """Wait for all work of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def alternate(
    contestants: Mapping[str, Callable[[], object]], *, rounds: int, at_least_s: float, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of every contestant by round, after two runs of each to warm up.

    Args:
        contestants: what to run, by name.
        rounds: turns of each, in alternation.
        at_least_s: short runs are repeated within a turn until they take this long together; the median counts.
        device: that they run on.
    """
    repetitions = {}
    for name, run in contestants.items():
        run()
        repetitions[name] = max(1, min(100, int(at_least_s / max(_seconds(run, device), 1e-6))))
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            taken[name].append(median(_seconds(run, device) for _ in range(repetitions[name])))
    return taken


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    finish(device)
    start = time.perf_counter()
    run()
    finish(device)
    return time.perf_counter() - start


def peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """What a second run takes at most of the device's memory, beyond what is taken before; None where that is not known.

    The first run leaves workspaces of matrix products behind, 32 MiB on an H100, and moments of the optimizer.
    """
    run()
    if device.type != "cuda":
        return None
    free(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    finish(device)
    return torch.cuda.max_memory_allocated(device) - before


def free(device: torch.device) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def copy_bytes_per_s(device: torch.device, num_bytes: int) -> float:
    """Bytes per second, read and written, of copying on the device."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    taken = alternate({"copy": lambda: target.copy_(source)}, rounds=5, at_least_s=0.05, device=device)
    return 2 * num_bytes / median(taken["copy"])

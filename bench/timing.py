"""Time several ways to do the same in alternation, so that whatever else the machine does hits them alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from statistics import median


def alternate(
    contestants: Mapping[str, Callable[[], object]], *, repetitions: int = 7, at_least_s: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of every run of every contestant, after one run of each to warm up.

    Args:
        contestants: what to run, by name.
        repetitions: runs of each.
        at_least_s: repeat short runs within a measurement until they take this long together.
    """
    loops = {}
    for name, run in contestants.items():
        run()
        start = time.perf_counter()
        run()
        loops[name] = max(1, int(at_least_s / max(time.perf_counter() - start, 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    gc.collect()
    for _ in range(repetitions):
        for name, run in contestants.items():
            start = time.perf_counter()
            for _ in range(loops[name]):
                run()
            seconds[name].append((time.perf_counter() - start) / loops[name])
    return seconds


def median_ratio(slower: list[float], faster: list[float]) -> float:
    """Median over the rounds of slower / faster: both runs of a round met the same machine."""
    return median(a / b for a, b in zip(slower, faster, strict=True))

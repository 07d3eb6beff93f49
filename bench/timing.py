"""Time several ways to do the same in alternation, so that whatever else the machine does hits them alike; on the processor or on a device.

Nothing of a device is under way when the clock starts and when it stops.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from statistics import median

import torch

from sagann.errors import InputError
from sagann.runtime.places import device_named
from sagann.runtime.processor import num_cores, processor_name

PROCESSOR = torch.device("cpu")
PACKAGES = ("triton", "torch_geometric", "pyg-lib", "torch-sparse")
"Packages whose versions a page states, where they are installed."


def alternate(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 7,
    at_least_s: float = 0.0,
    device: torch.device = PROCESSOR,
) -> dict[str, list[float]]:
    """Seconds of a run of every contestant by round, after two runs of each to warm up."""
    repetitions = {}
    for name, run in contestants.items():
        run()
        repetitions[name] = max(1, min(200, int(at_least_s / max(_seconds(run, device), 1e-6))))
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    gc.collect()
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


def finish(device: torch.device) -> None:
    """Wait for all work of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_ratio(slower: list[float], faster: list[float]) -> float:
    """Median over the rounds of slower / faster: both runs of a round met the same machine."""
    return median(a / b for a, b in zip(slower, faster, strict=True))


def device_to_measure(name: str) -> torch.device:
    """The device of that name. Where it is not there, the program ends."""
    try:
        return device_named(name)
    except InputError as error:
        raise SystemExit(f"There is nothing to measure. {error}") from error


def where(device: torch.device) -> str:
    """The device, the host, and versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"
    versions = []
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions.append(f"{package} {version(package)}")
    return (
        f"{name}, {num_cores()} cores of {processor_name()}; PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"{', '.join(versions)}."
    )

"""Probe: measures the rates of this machine, with the kernels, the memory and the threads of a run."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sagann.byte_size import with_exact
from sagann.errors import InputError
from sagann.graph.topology import Topology
from sagann.kernels.dense import linear
from sagann.kernels.edge import dialect_for
from sagann.kernels.edge.builder import Builder
from sagann.kernels.edge.function import EdgeFunction, Input, Output, Side
from sagann.kernels.memory import Pool
from sagann.plan.machine import DISK, Disk, Machine
from sagann.plan.selection import Selection
from sagann.runtime.blocks.host import picked
from sagann.runtime.processor import cache_bytes, num_cores, processor_name
from sagann.storage.positioned import read_bytes, write_bytes

NUM_FEATURES = 128
"Features of a gathered row, which has 512 bytes, and of a row of a matrix product's result."
_ROW_BYTES = 4 * NUM_FEATURES
_IN_FEATURES = 512
_PRODUCT_ROWS = 1 << 15
_DEGREE = 64
# Most destinations of a gather, so that it writes little beside the rows that it reads.
_MOST_DST = 8192
_NUM_REPETITIONS = 9
# The difference of two times needs more repetitions than a time.
_NUM_DIFFERENCES = 25
_NUM_STEPS = 200
_COPIED_BYTES = 256 << 20
_CPU = torch.device("cpu")
# Further digits differ from probe to probe.
_DIGITS = 4
# Size of an array, and number of repetitions, of a measurement that must be quick and small.
_QUICK_BYTES = 32 << 20
_NUM_QUICK = 5
# Least share of a pass that is its sigmoids'. A smaller share is lost in the noise.
_LEAST_ADDED = 0.05


def probe(folder: Path, device: torch.device = _CPU) -> Machine:
    """Measure this machine, in a few seconds (more if the disk is slow) and at most about 1.5 GiB of memory.

    Each rate is the median of several runs after one to warm up. Kernels run on as many threads as PyTorch is set to.
    Other work of the machine lowers the rates.

    Args:
        folder: folder on the disk to measure, as for spilled blocks. No file stays there.
        device: device that computes. For a CUDA device, copies between device and host are measured as well.
    Raises:
        InputError: the folder is missing, cannot be written, or has too little room.
    """
    # The disk comes first, because only the disk may be refused.
    disk = disk_rates(folder)
    on_host = device.type == "cpu"
    cached = cache_bytes() if on_host else torch.cuda.get_device_properties(device).L2_cache_size
    # An eighth of the cache, which also holds results and offsets, and which other processes may use.
    in_cache = _within(cached // 8, 1 << 19, 32 << 20)
    rates: dict[str, Any] = {
        "matmul_flops": _matmul_flops(device),
        "stream_bytes": _stream_bytes(cached, device),
        "gather_bytes": _gather_bytes(_within(8 * cached, 256 << 20, 1 << 30), device),
        "gather_cached_bytes": _gather_bytes(in_cache, device),
        "exp_per_s": _exp_per_s(in_cache, device),
        "copy_bytes": _copy_bytes(_large_bytes(cache_bytes())),
        "pick_bytes": _pick_bytes(_large_bytes(cache_bytes())),
        "step_s": _step_s(device),
    }
    if not on_host:
        rates |= _between_bytes(device)
    rounded: dict[str, Any] = {name: _rounded(rate) for name, rate in rates.items()}
    rounded["disks"] = {DISK: Disk(**{name: _rounded(rate) for name, rate in asdict(disk).items()})}
    name = processor_name() if on_host else torch.cuda.get_device_name(device)
    return Machine(name=name, num_cores=num_cores(), cache_bytes=cached, **rounded)


def _rounded(rate: float) -> float:
    return float(f"{rate:.{_DIGITS}g}")


def _within(wanted: int, least: int, most: int) -> int:
    return min(max(wanted, least), most)


def _seconds(
    *runs: Callable[[], object], repetitions: int = _NUM_REPETITIONS, device: torch.device = _CPU
) -> list[list[float]]:
    """Seconds of each run. The runs alternate, after one of each to warm up."""

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for run in runs:
        run()
    finish()
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(repetitions):
        for run, seconds in zip(runs, taken, strict=True):
            start_s = time.perf_counter()
            run()
            finish()
            seconds.append(time.perf_counter() - start_s)
    return taken


def _median_s(
    run: Callable[[], object], device: torch.device = _CPU, *, repetitions: int = _NUM_REPETITIONS
) -> float:
    (taken,) = _seconds(run, repetitions=repetitions, device=device)
    return median(taken)


def _ones(device: torch.device, *shape: int) -> Tensor:
    """An array of ones, on the CPU in a pool's memory. The pool is freed with the array."""
    if device.type != "cpu":
        return torch.ones(shape, device=device)
    return Pool().empty(shape, torch.float32).fill_(1.0)


def _matmul_flops(device: torch.device) -> float:
    x = _ones(device, _PRODUCT_ROWS, _IN_FEATURES)
    weight = torch.ones(NUM_FEATURES, _IN_FEATURES, device=device)
    return 2 * _PRODUCT_ROWS * _IN_FEATURES * NUM_FEATURES / _median_s(lambda: linear(x, weight), device)


def _large_bytes(cached: int) -> int:
    return _within(2 * cached, 64 << 20, 256 << 20)


def _stream_bytes(cached: int, device: torch.device) -> float:
    a, b, out = (_ones(device, _large_bytes(cached) // 4) for _ in range(3))
    return (a.nbytes + b.nbytes + out.nbytes) / _median_s(lambda: torch.add(a, b, out=out), device)


def _copy_bytes(num_bytes: int, repetitions: int = _NUM_REPETITIONS) -> float:
    source, target = (_ones(_CPU, num_bytes // 4) for _ in range(2))
    return source.nbytes / _median_s(lambda: target.copy_(source), repetitions=repetitions)


def _pick_bytes(num_bytes: int, repetitions: int = _NUM_REPETITIONS) -> float:
    """Bytes per second of the rows that are picked, without the rows between them."""
    source = _ones(_CPU, num_bytes // _ROW_BYTES, NUM_FEATURES)
    rows = torch.arange(0, len(source), 2)
    return len(rows) * _ROW_BYTES / _median_s(lambda: picked({"": source}, rows), repetitions=repetitions)


def _between_bytes(
    device: torch.device, num_bytes: int = _COPIED_BYTES, repetitions: int = _NUM_REPETITIONS
) -> dict[str, float]:
    """Rates of copies between pinned memory and the device, one direction at a time."""
    there = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    here = torch.ones(num_bytes, dtype=torch.uint8).pin_memory()
    to_device, to_host = _seconds(
        lambda: there.copy_(here, non_blocking=True),
        lambda: here.copy_(there, non_blocking=True),
        repetitions=repetitions,
        device=device,
    )
    return {
        "host_to_device_bytes": num_bytes / median(to_device),
        "device_to_host_bytes": num_bytes / median(to_host),
    }


@cache
def measured_selection(device: torch.device = _CPU) -> Selection:
    """The choice of picked rows for copies within memory, or from memory to a device.

    Measured once per process and device, in a tenth of a second.
    """
    if device.type == "cpu":
        transfer_bytes = _copy_bytes(_QUICK_BYTES, _NUM_QUICK)
    else:
        transfer_bytes = _between_bytes(device, _QUICK_BYTES, _NUM_QUICK)["host_to_device_bytes"]
    return Selection.by_rates(pick_bytes=_pick_bytes(_QUICK_BYTES, _NUM_QUICK), transfer_bytes=transfer_bytes)


def _gather_bytes(source_bytes: int, device: torch.device) -> float:
    """Bytes of source rows per second in a sum over edges, which reads from an array of ``source_bytes``."""
    topology = _random_topology(source_bytes // _ROW_BYTES).to(device)
    function = _function(("x",), lambda _: "x")
    arrays = {"x": _ones(device, topology.num_src, NUM_FEATURES)}
    return topology.num_edges * _ROW_BYTES / _median_s(lambda: _run(function, topology, arrays), device)


def _exp_per_s(source_bytes: int, device: torch.device) -> float:
    """Exponentials per second: the sigmoids of a gated layer over the seconds that they add to the same pass, in a cache."""
    topology = _random_topology(source_bytes // _ROW_BYTES).to(device)
    names = ("x", "b", "a")
    plain = _function(names, lambda b: b.op("mul", b.op("add", "a", "b"), "x"))
    gated = _function(names, lambda b: b.op("mul", b.op("sigmoid", b.op("add", "a", "b")), "x"))
    rows = {"x": topology.num_src, "b": topology.num_src, "a": topology.num_dst}
    arrays = {name: _ones(device, count, NUM_FEATURES) for name, count in rows.items()}
    passes = [partial(_run, function, topology, arrays) for function in (plain, gated)]
    without, with_gate = _seconds(*passes, repetitions=_NUM_DIFFERENCES, device=device)
    # The two runs of a round see the same load of the machine.
    added_s = median(after - before for before, after in zip(without, with_gate, strict=True))
    return topology.num_edges * NUM_FEATURES / max(added_s, _LEAST_ADDED * median(with_gate))


def _step_s(device: torch.device) -> float:
    """Seconds of a pass over a few edges that were just loaded.

    On the CPU nothing is known of such edges, so the pass first cuts them. Edges come to a device with their cut.
    """
    known = _random_topology(16).to(device)
    function = _function(("x",), lambda _: "x")
    arrays = {"x": torch.ones(known.num_src, NUM_FEATURES, device=device)}

    def loaded() -> Topology:
        if device.type != "cpu":
            return known
        return Topology(indptr=known.indptr, indices=known.indices, num_src=known.num_src, validate=False)

    return _median_s(lambda: _run(function, loaded(), arrays), device, repetitions=_NUM_STEPS)


def _random_topology(num_src: int) -> Topology:
    """Destinations with equally many in-edges, each from a random source."""
    num_dst = min(num_src, _MOST_DST)
    num_edges = num_dst * _DEGREE
    return Topology(
        indptr=torch.arange(0, num_edges + 1, _DEGREE),
        indices=torch.randint(num_src, (num_edges,), dtype=torch.int32, generator=torch.Generator().manual_seed(0)),
        num_src=num_src,
        validate=False,
    )


def _function(names: Sequence[str], message: Callable[[Builder], str]) -> EdgeFunction:
    """A sum over edges of a message of rows: row "a" is a destination's, the other rows are sources'."""
    sides: dict[str, Side] = {name: "dst" if name == "a" else "src" for name in names}
    builder = Builder(
        Input(name=name, side=side, shape=(NUM_FEATURES,), dtype=torch.float32) for name, side in sides.items()
    )
    return builder.build([Output(reduce="sum", values=(message(builder),))], "dst")


def _run(function: EdgeFunction, topology: Topology, arrays: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return dialect_for(topology.device.type).run(function, topology, arrays)


FILE_BYTES = 256 << 20
"Size of the file, in bytes. The file is smaller if the disk has room for less than twice as much."
LEAST_BYTES = 64 << 20
"Least size of the file, in bytes. A smaller file measures the disk's own caches rather than the disk."
_PIECE_BYTES = 8 << 20
_NUM_ROUNDS = 3
# No round begins later.
_LONGEST_S = 4.0


def disk_rates(folder: Path) -> Disk:
    """Measure the disk that holds ``folder``. No file stays there, even if the process is killed.

    The rates are medians of a few rounds. Each round writes the file, syncs it, makes the page cache drop it, and reads it twice. A first
    round makes the file and does not count, unless the disk is too slow for another one. Where the folder lies in memory (tmpfs), or on a
    virtual disk that its host caches, the rates are those of memory or of that cache. A folder that cannot be measured is an InputError.
    """
    try:
        num_bytes = _file_bytes(shutil.disk_usage(folder).free, folder)
        # If the system can, the file has no name and ends with the process.
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return _measured(file.fileno(), num_bytes)
    except OSError as error:
        raise InputError(
            f"the disk cannot be measured: {error.strerror or str(error)} (in '{folder}')",
            hint="Name a folder that exists, on a disk with room, and that you may write to.",
        ) from error


def _file_bytes(free_bytes: int, folder: Path) -> int:
    if free_bytes < LEAST_BYTES:
        raise InputError(
            f"too little room to measure the disk: {with_exact(free_bytes)} are free, "
            f"{with_exact(LEAST_BYTES)} are needed (in '{folder}')",
            hint="Free some, or name a folder on another disk.",
        )
    # A nearly full disk is slow for every process that writes to it.
    wanted = min(FILE_BYTES, max(LEAST_BYTES, free_bytes // 2))
    return wanted // _PIECE_BYTES * _PIECE_BYTES


def _measured(file: int, num_bytes: int) -> Disk:
    # Random bytes, because some file systems store zeros and repetitions in no space and no time.
    piece = memoryview(np.random.default_rng(0).integers(0, 256, _PIECE_BYTES, np.uint8).data)
    # Memory as large as the file, because a few pieces that are reused would stay in the processor's cache.
    into = memoryview(bytearray(num_bytes))
    rounds: list[tuple[float, float, float]] = []
    began_s = time.perf_counter()
    while len(rounds) <= _NUM_ROUNDS and (not rounds or time.perf_counter() - began_s < _LONGEST_S):
        since_s = time.perf_counter()
        for begin in range(0, num_bytes, len(piece)):
            write_bytes(file, piece, begin)
        os.fsync(file)
        write_s = time.perf_counter() - since_s
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, num_bytes, os.POSIX_FADV_DONTNEED)
        rounds.append((_read_s(file, num_bytes, into[:_PIECE_BYTES]), _read_s(file, num_bytes, into), write_s))
    read, cached, write = (num_bytes / median(seconds) for seconds in zip(*(rounds[1:] or rounds), strict=True))
    return Disk(read_bytes_per_s=read, cached_bytes_per_s=cached, write_bytes_per_s=write)


def _read_s(file: int, num_bytes: int, into: memoryview) -> float:
    """Seconds to read piece by piece into ``into``, which begins anew at its end."""
    since_s = time.perf_counter()
    for offset in range(0, num_bytes, _PIECE_BYTES):
        at = offset % len(into)
        read_bytes(file, into[at : at + _PIECE_BYTES], offset)
    return time.perf_counter() - since_s

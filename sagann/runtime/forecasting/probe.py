"""Probe: measure the rates of this machine, with the kernels, the memory and the threads that a run uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.dense import linear
from sagann.kernels.dialects import dialect_for, run_pass
from sagann.kernels.edge.function import EdgeFunction, Input, Op, Output
from sagann.kernels.memory import Pool
from sagann.plan.machine import Machine
from sagann.plan.selection import Selection
from sagann.runtime.blocks.host import copy_into, picked
from sagann.runtime.forecasting.disk_probe import disk_rates
from sagann.runtime.processor import cache_bytes, num_cores, processor_name

NUM_FEATURES = 128
"Of a gathered row, which has 512 bytes; and of the results of matrix products."
_ROW_BYTES = 4 * NUM_FEATURES
_IN_FEATURES = 512
_PRODUCT_ROWS = 1 << 15
_DEGREE = 64
# Of a gather, so that what it writes is little beside what it reads.
_MOST_DST = 8192
_NUM_REPETITIONS = 9
# A difference of two times needs more of them.
_NUM_DIFFERENCES = 25
_NUM_STEPS = 200
_COPIED_BYTES = 256 << 20
_CPU = torch.device("cpu")
# Digits beyond these differ from one probe to the next.
_DIGITS = 4
# Of an array, where two rates are compared at once and little memory may be taken.
_QUICK_BYTES = 32 << 20
_NUM_QUICK = 5
# Of a pass, the least that a sigmoid is taken to add to it: less is lost in the noise.
_LEAST_ADDED = 0.05


def probe(folder: Path, device: torch.device = _CPU) -> Machine:
    """Measure this machine, in a few seconds (more where the disk is slow) and at most about 1.5 GiB of memory.

    Each rate is the median of several runs after one to warm up. Kernels run on as many threads as PyTorch is set to.
    What else the machine does meanwhile makes the rates lower.

    Args:
        folder: where the disk is measured, as of blocks that are spilled; nothing is left there.
        device: what computes. Of a CUDA device, the copies between it and the host are measured as well.
    Raises:
        InputError: the folder is missing, not to be written, or has too little room.
    """
    # Done first: it is what may be refused.
    disk = disk_rates(folder)
    on_host = device.type == "cpu"
    cached = cache_bytes() if on_host else torch.cuda.get_device_properties(device).L2_cache_size
    rates: dict[str, Any] = {
        "matmul_flops": _matmul_flops(device),
        "stream_bytes": _stream_bytes(cached, device),
        "gather_bytes": _gather_bytes(_within(8 * cached, 256 << 20, 1 << 30), device),
        # An eighth: results and offsets lie in the cache as well, and it may not be ours alone.
        "gather_cached_bytes": _gather_bytes(_within(cached // 8, 1 << 19, 32 << 20), device),
        "exp_per_s": _exp_per_s(_within(cached // 8, 1 << 19, 32 << 20), device),
        "copy_bytes": _copy_bytes(_large_bytes(cache_bytes())),
        "pick_bytes": _pick_bytes(_large_bytes(cache_bytes())),
        "disk_read_bytes": disk.read,
        "file_cache_bytes": disk.cached,
        "disk_write_bytes": disk.write,
        "step_s": _step_s(device),
    }
    if not on_host:
        rates |= _between_bytes(device)
    rounded: dict[str, Any] = {name: float(f"{rate:.{_DIGITS}g}") for name, rate in rates.items()}
    name = processor_name() if on_host else torch.cuda.get_device_name(device)
    return Machine(name=name, num_cores=num_cores(), cache_bytes=cached, **rounded)


def _within(wanted: int, least: int, most: int) -> int:
    return min(max(wanted, least), most)


def _seconds(
    *runs: Callable[[], object], repetitions: int = _NUM_REPETITIONS, device: torch.device = _CPU
) -> list[list[float]]:
    """Seconds of every run, which alternate, after one of each to warm up."""

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


def _ones(pool: Pool, device: torch.device, *shape: int) -> Tensor:
    if device.type != "cpu":
        return torch.ones(shape, device=device)
    return pool.empty(shape, torch.float32).fill_(1.0)


def _matmul_flops(device: torch.device) -> float:
    x = _ones(Pool(), device, _PRODUCT_ROWS, _IN_FEATURES)
    weight = torch.ones(NUM_FEATURES, _IN_FEATURES, device=device)
    (taken,) = _seconds(lambda: linear(x, weight), device=device)
    return 2 * _PRODUCT_ROWS * _IN_FEATURES * NUM_FEATURES / median(taken)


def _large_bytes(cached: int) -> int:
    """Of an array of a few times the cache."""
    return _within(2 * cached, 64 << 20, 256 << 20)


def _arrays(num_bytes: int, count: int, device: torch.device = _CPU) -> list[Tensor]:
    pool = Pool()
    return [_ones(pool, device, num_bytes // 4) for _ in range(count)]


def _stream_bytes(cached: int, device: torch.device) -> float:
    a, b, out = _arrays(_large_bytes(cached), 3, device)
    (taken,) = _seconds(lambda: torch.add(a, b, out=out), device=device)
    return (a.nbytes + b.nbytes + out.nbytes) / median(taken)


def _copy_bytes(num_bytes: int, repetitions: int = _NUM_REPETITIONS) -> float:
    source, target = _arrays(num_bytes, 2)
    (taken,) = _seconds(lambda: copy_into(target, source), repetitions=repetitions)
    return source.nbytes / median(taken)


def _pick_bytes(num_bytes: int, repetitions: int = _NUM_REPETITIONS) -> float:
    """Of the rows that are picked, not of those between them."""
    (source,) = _arrays(num_bytes, 1)
    rows = torch.arange(0, num_bytes // _ROW_BYTES, 2)
    (taken,) = _seconds(lambda: picked({"": source.view(-1, NUM_FEATURES)}, rows), repetitions=repetitions)
    return len(rows) * _ROW_BYTES / median(taken)


def _between_bytes(
    device: torch.device, num_bytes: int = _COPIED_BYTES, repetitions: int = _NUM_REPETITIONS
) -> dict[str, float]:
    """Of copies between pinned memory and the device, one way at a time."""
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
    """Which rows are picked on this machine, between its memory and itself or a device; measured once per process and
    device, in a tenth of a second."""
    if device.type == "cpu":
        transfer_bytes = _copy_bytes(_QUICK_BYTES, _NUM_QUICK)
    else:
        transfer_bytes = _between_bytes(device, _QUICK_BYTES, _NUM_QUICK)["host_to_device_bytes"]
    return Selection.by_rates(pick_bytes=_pick_bytes(_QUICK_BYTES, _NUM_QUICK), transfer_bytes=transfer_bytes)


def _gather_bytes(source_bytes: int, device: torch.device) -> float:
    """Bytes of source rows per second in a sum over edges that reads from an array of so many bytes."""
    topology = _random_topology(source_bytes // _ROW_BYTES).to(device)
    function = _function([_input("x", "src")], [], "x")
    arrays = {"x": _ones(Pool(), device, topology.num_src, NUM_FEATURES)}
    (taken,) = _seconds(lambda: _run(function, topology, arrays), device=device)
    return topology.num_edges * _ROW_BYTES / median(taken)


def _exp_per_s(source_bytes: int, device: torch.device) -> float:
    """What the sigmoid of a gated layer adds to a pass that reads and sums the same, in a cache, in exponentials."""
    topology = _random_topology(source_bytes // _ROW_BYTES).to(device)
    inputs = [_input("x", "src"), _input("b", "src"), _input("a", "dst")]
    added, gate = _op("s", "add", "a", "b"), _op("g", "sigmoid", "s")
    plain = _function(inputs, [added, _op("m", "mul", "s", "x")], "m")
    gated = _function(inputs, [added, gate, _op("m", "mul", "g", "x")], "m")
    pool = Pool()
    rows = {"x": topology.num_src, "b": topology.num_src, "a": topology.num_dst}
    arrays = {name: _ones(pool, device, count, NUM_FEATURES) for name, count in rows.items()}
    passes = [partial(_run, function, topology, arrays) for function in (plain, gated)]
    without, with_gate = _seconds(*passes, repetitions=_NUM_DIFFERENCES, device=device)
    # Both runs of a round met the same machine.
    added_s = median(after - before for before, after in zip(without, with_gate, strict=True))
    return topology.num_edges * NUM_FEATURES / max(added_s, _LEAST_ADDED * median(with_gate))


def _step_s(device: torch.device) -> float:
    """Seconds of a pass over a few edges that were just loaded: a topology that nothing is known of yet.

    To a device edges come with how they are cut, so that it is known.
    """
    known = _random_topology(16).to(device)
    function = _function([_input("x", "src")], [], "x")
    arrays = {"x": torch.ones(known.num_src, NUM_FEATURES, device=device)}

    def step() -> None:
        if device.type != "cpu":
            _run(function, known, arrays)
            return
        topology = Topology(indptr=known.indptr, indices=known.indices, num_src=known.num_src, validate=False)
        _run(function, topology, arrays)

    (taken,) = _seconds(step, repetitions=_NUM_STEPS, device=device)
    return median(taken)


def _random_topology(num_src: int) -> Topology:
    """Destinations with the same number of in-edges each, from anywhere."""
    num_dst = min(num_src, _MOST_DST)
    num_edges = num_dst * _DEGREE
    return Topology(
        indptr=torch.arange(0, num_edges + 1, _DEGREE),
        indices=torch.randint(num_src, (num_edges,), dtype=torch.int32, generator=torch.Generator().manual_seed(0)),
        num_src=num_src,
        validate=False,
    )


def _input(name: str, side: str) -> Input:
    return Input(name=name, side=side, shape=(NUM_FEATURES,), dtype=torch.float32)  # type: ignore[arg-type]


def _op(name: str, op: str, *args: str) -> Op:
    return Op(name=name, op=op, args=args, shape=(NUM_FEATURES,), dtype=torch.float32)


def _function(inputs: list[Input], ops: list[Op], summed: str) -> EdgeFunction:
    output = Output(reduce="sum", values=(summed,))
    return EdgeFunction(inputs=tuple(inputs), ops=tuple(ops), outputs=(output,), at="dst")


def _run(function: EdgeFunction, topology: Topology, arrays: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return run_pass(dialect_for(topology.device.type), function, topology, arrays)

"""Probe: measure the rates of this machine, with the kernels, the memory and the threads that a run uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.dense import linear
from sagann.kernels.edge.function import EdgeFunction, Input, Op, Output
from sagann.kernels.memory import Pool
from sagann.plan.machine import Machine
from sagann.plan.selection import Selection
from sagann.runtime.dialects import dialect_for, run_pass
from sagann.runtime.disk_probe import disk_rates
from sagann.runtime.picking import pick_rows
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
# Digits beyond these differ from one probe to the next.
_DIGITS = 4
# Of an array, where two rates are compared at once and little memory may be taken.
_QUICK_BYTES = 32 << 20
_NUM_QUICK = 5
# Of a pass, the least that a sigmoid is taken to add to it: less is lost in the noise.
_LEAST_ADDED = 0.05


def probe(folder: Path) -> Machine:
    """Measure this machine, in a few seconds (more where the disk is slow) and at most about 1.5 GiB of memory.

    Each rate is the median of several runs after one to warm up. Kernels run on as many threads as PyTorch is set to.
    What else the machine does meanwhile makes the rates lower.

    Args:
        folder: where the disk is measured, as of blocks that are spilled; nothing is left there.
    Raises:
        InputError: the folder is missing, not to be written, or has too little room.
    """
    # Done first: it is what may be refused.
    disk = disk_rates(folder)
    cached = cache_bytes()
    rates = {
        "matmul_flops": _matmul_flops(),
        "stream_bytes": _stream_bytes(cached),
        "gather_bytes": _gather_bytes(_within(8 * cached, 256 << 20, 1 << 30)),
        # An eighth: results and offsets lie in the cache as well, and it may not be ours alone.
        "gather_cached_bytes": _gather_bytes(_within(cached // 8, 1 << 19, 32 << 20)),
        "exp_per_s": _exp_per_s(_within(cached // 8, 1 << 19, 32 << 20)),
        "copy_bytes": _copy_bytes(_large_bytes(cached)),
        "pick_bytes": _pick_bytes(_large_bytes(cached)),
        "disk_read_bytes": disk.read,
        "disk_write_bytes": disk.write,
        "step_s": _step_s(),
    }
    rounded = {name: float(f"{rate:.{_DIGITS}g}") for name, rate in rates.items()}
    return Machine(name=processor_name(), num_cores=num_cores(), cache_bytes=cached, **rounded)


def _within(wanted: int, least: int, most: int) -> int:
    return min(max(wanted, least), most)


def _seconds(*runs: Callable[[], object], repetitions: int = _NUM_REPETITIONS) -> list[list[float]]:
    """Seconds of every run, which alternate, after one of each to warm up."""
    for run in runs:
        run()
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(repetitions):
        for run, seconds in zip(runs, taken, strict=True):
            start_s = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start_s)
    return taken


def _ones(pool: Pool, *shape: int) -> Tensor:
    return pool.empty(shape, torch.float32).fill_(1.0)


def _matmul_flops() -> float:
    x, weight = _ones(Pool(), _PRODUCT_ROWS, _IN_FEATURES), torch.ones(NUM_FEATURES, _IN_FEATURES)
    (taken,) = _seconds(lambda: linear(x, weight))
    return 2 * _PRODUCT_ROWS * _IN_FEATURES * NUM_FEATURES / median(taken)


def _large_bytes(cached: int) -> int:
    """Of an array of a few times the cache."""
    return _within(2 * cached, 64 << 20, 256 << 20)


def _arrays(num_bytes: int, count: int) -> list[Tensor]:
    pool = Pool()
    return [_ones(pool, num_bytes // 4) for _ in range(count)]


def _stream_bytes(cached: int) -> float:
    a, b, out = _arrays(_large_bytes(cached), 3)
    (taken,) = _seconds(lambda: torch.add(a, b, out=out))
    return (a.nbytes + b.nbytes + out.nbytes) / median(taken)


def _copy_bytes(num_bytes: int, repetitions: int = _NUM_REPETITIONS) -> float:
    source, target = (array.numpy() for array in _arrays(num_bytes, 2))
    # NumPy copies on the calling thread alone.
    (taken,) = _seconds(lambda: np.copyto(target, source), repetitions=repetitions)
    return source.nbytes / median(taken)


def _pick_bytes(num_bytes: int, repetitions: int = _NUM_REPETITIONS) -> float:
    """Of the rows that are picked, not of those between them."""
    (source,) = _arrays(num_bytes, 1)
    rows = torch.arange(0, num_bytes // _ROW_BYTES, 2)
    (taken,) = _seconds(lambda: pick_rows(source.view(-1, NUM_FEATURES), rows), repetitions=repetitions)
    return len(rows) * _ROW_BYTES / median(taken)


@cache
def measured_selection() -> Selection:
    """Which rows are picked on this machine, between its memory and itself; measured once per process, in a tenth
    of a second.

    A disk gives less than memory does, so there is more to gain than this says.
    """
    return Selection.by_rates(
        pick_bytes=_pick_bytes(_QUICK_BYTES, _NUM_QUICK), transfer_bytes=_copy_bytes(_QUICK_BYTES, _NUM_QUICK)
    )


def _gather_bytes(source_bytes: int) -> float:
    """Bytes of source rows per second in a sum over edges that reads from an array of so many bytes."""
    topology = _random_topology(source_bytes // _ROW_BYTES)
    function = _function([_input("x", "src")], [], "x")
    arrays = {"x": _ones(Pool(), topology.num_src, NUM_FEATURES)}
    (taken,) = _seconds(lambda: _run(function, topology, arrays))
    return topology.num_edges * _ROW_BYTES / median(taken)


def _exp_per_s(source_bytes: int) -> float:
    """What the sigmoid of a gated layer adds to a pass that reads and sums the same, in a cache, in exponentials."""
    topology = _random_topology(source_bytes // _ROW_BYTES)
    inputs = [_input("x", "src"), _input("b", "src"), _input("a", "dst")]
    added, gate = _op("s", "add", "a", "b"), _op("g", "sigmoid", "s")
    plain = _function(inputs, [added, _op("m", "mul", "s", "x")], "m")
    gated = _function(inputs, [added, gate, _op("m", "mul", "g", "x")], "m")
    pool = Pool()
    arrays = {"x": _ones(pool, topology.num_src, NUM_FEATURES), "b": _ones(pool, topology.num_src, NUM_FEATURES)}
    arrays["a"] = _ones(pool, topology.num_dst, NUM_FEATURES)
    passes = [partial(_run, function, topology, arrays) for function in (plain, gated)]
    without, with_gate = _seconds(*passes, repetitions=_NUM_DIFFERENCES)
    # Both runs of a round met the same machine.
    added_s = median(after - before for before, after in zip(without, with_gate, strict=True))
    return topology.num_edges * NUM_FEATURES / max(added_s, _LEAST_ADDED * median(with_gate))


def _step_s() -> float:
    """Seconds of a pass over a few edges that were just loaded: a topology that nothing is known of yet."""
    known = _random_topology(16)
    function = _function([_input("x", "src")], [], "x")
    arrays = {"x": torch.ones(known.num_src, NUM_FEATURES)}

    def step() -> None:
        topology = Topology(indptr=known.indptr, indices=known.indices, num_src=known.num_src, validate=False)
        _run(function, topology, arrays)

    (taken,) = _seconds(step, repetitions=_NUM_STEPS)
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
    return run_pass(dialect_for("cpu"), function, topology, arrays)

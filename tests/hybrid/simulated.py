"""Iterations of a policy on simulated machines of a processor and one accelerator of unequal speed.

The best static split is found by search over all divisions of the threads and a grid of seeds. Noise multiplies the seconds of every stage by
a log-normal number, and sometimes by three.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from bench.hyscale.batches import expected_counts, log_normal_law
from sagann.hybrid.assignment import HOST, Assignment, StageTimes, Threads
from sagann.hybrid.forecast import Job, Widths, even_assignment
from sagann.hybrid.policies import Balance, next_balance
from sagann.plan.machine import DISK, Disk, Link, Machine

ACCELERATOR = "accelerator0"
RATIOS = (1, 2, 4)
"Times as fast as the whole processor that the accelerator propagates."
TOTAL = 1024
"Seeds of an iteration."
CLOSE = 1.05
"Times the best iteration that count as settled."
NOISE = 0.1
"Standard deviation of the logarithm of a measured second over the true one."
SPIKES = 0.02
"Part of the measurements that a pause makes three times as long."
GRID = 16
"Seeds between two splits that the search tries."
HORIZON = 30
"Iterations in which a policy is to settle."
LAW = log_normal_law(num_vertices=200_000, mean=20, top_share=0.2, symmetric=True)
counts_of = cache(partial(expected_counts, LAW, (10, 5)))


def machine_with(ratio: float, cores: int) -> Machine:
    """A processor, and an accelerator that propagates ``ratio`` times as fast as all of its cores."""
    flops, rows = cores * 5e10, cores * 2.5e9
    return Machine(
        name=f"{cores} cores, and an accelerator {ratio:g} times as fast as they",
        num_cores=cores,
        matmul_flops=flops,
        stream_bytes=rows,
        gather_bytes=rows,
        gather_cached_bytes=rows,
        cache_bytes=1 << 25,
        exp_per_s=1e9,
        copy_bytes=1e11,
        pick_bytes=4e9,
        step_s=1e-5,
        disks={DISK: Disk(read_bytes_per_s=1e9, cached_bytes_per_s=1e9, write_bytes_per_s=1e9)},
        devices={ACCELERATOR: {"matmul_flops": ratio * flops, "gather_bytes": ratio * rows}},
        links={f"{ACCELERATOR}.copy_in": Link(bytes_per_s=1e11)},
    )


@cache
def job_with(ratio: float, cores: int) -> Job:
    """What is trained, on such a machine."""
    return Job(
        machine=machine_with(ratio, cores),
        counts=counts_of,
        num_train=100_000,
        widths=Widths(features=(128, 256, 32)),
        sampled_edges_per_s=1e7,
    )


@cache
def best_by_search(ratio: float, cores: int) -> float:
    """Seconds of the slowest stage of the best static split: every division of the threads, and a grid of seeds."""
    job, found = job_with(ratio, cores), math.inf
    for host in range(0, TOTAL + 1, GRID):
        seeds = {HOST: host, ACCELERATOR: TOTAL - host}
        for train in range(1, cores - 1):
            # Sampling and loading take their seconds with one thread over the number of threads.
            split = Assignment(seeds=seeds, threads=Threads(sample=1, load=1, train=train))
            times = job.times(split)
            trained = max(times.host_train, times.accelerator)
            if trained < found:
                rest = cores - train
                fed = min(max(times.sample / each, times.load / (rest - each)) for each in range(1, rest))
                found = min(found, max(trained, fed))
    return found


def run(
    policy: str, ratio_at: Callable[[int], float], iterations: int, *, cores: int, noise: float = 0.0, seed: int = 0
) -> list[Balance]:
    """What a policy decides iteration by iteration; the first entry is the even split that it starts from.

    Args:
        policy: name of a policy.
        ratio_at: speed of the accelerator at each iteration.
        iterations: number of iterations.
        cores: cores of the processor.
        noise: deviation of the logarithm of measured seconds; above 0, there are spikes as well.
        seed: seed of the noise.
    """
    generator = random.Random(seed)
    found = [Balance(assignment=even_assignment(cores, TOTAL, (ACCELERATOR,)))]
    for number in range(iterations):
        times = job_with(ratio_at(number), cores).times(found[-1].assignment)
        found.append(next_balance(policy, found[-1], _noisy(times, noise, generator)))
    return found


def times_best(balances: Sequence[Balance], ratio: float, cores: int) -> list[float]:
    """Seconds of the slowest stage with each assignment, over those of the best static split."""
    job, best_s = job_with(ratio, cores), best_by_search(ratio, cores)
    return [job.times(each.assignment).slowest / best_s for each in balances]


def settled_after(times: Sequence[float]) -> int | None:
    """Iterations after which times stay close to the best; None if they do not at the end."""
    late = [number for number, each in enumerate(times) if each > CLOSE]
    if not late:
        return 0
    return late[-1] + 1 if late[-1] + 1 < len(times) else None


def _noisy(times: StageTimes, noise: float, generator: random.Random) -> StageTimes:
    if not noise:
        return times

    def seconds(true: float) -> float:
        pause = 3.0 if generator.random() < SPIKES else 1.0
        return true * pause * math.exp(generator.gauss(0.0, noise))

    return replace(
        times,
        sample=seconds(times.sample),
        load=seconds(times.load),
        transfer={name: seconds(each) for name, each in times.transfer.items()},
        train={name: seconds(each) for name, each in times.train.items()},
    )

"""Predict: seconds of an iteration and of an epoch of hybrid training, the best split of the work, and what limits it.

The simulator runs a few iterations; after the first ones they are alike, and the others of an epoch take the seconds of that period. In
the equations an iteration takes as long as its slowest stage; the simulation says so too, and adds what begins and ends an epoch.

The best split is searched: for threads, what each task needs at the pace of the trainers; for seeds, that all trainers end together. That
is exact where seconds are in proportion to seeds, and is repeated because with shared vertices they are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sagann.errors import InputError
from sagann.plan.hybrid.assignment import HOST, Assignment, StageTimes, Threads, split_evenly
from sagann.plan.hybrid.balance import balanced
from sagann.plan.hybrid.iterations import (
    AnyJob,
    iteration_work,
    machine_of,
    plan_of,
    resource_seconds,
    stage_times,
)
from sagann.plan.hybrid.rates import rates_of
from sagann.plan.machine import DISK, Disk, Link, Machine
from sagann.plan.simulate import simulate

_SIMULATED = 16
"Iterations that are simulated; the pipeline is full after the first few."
_ROUNDS = 12
"Times that the search corrects its rates."
ACCELERATOR = "accelerator"
"Names of accelerators begin with it, and end with a number from 0."


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Hybrid training as it is expected to run."""

    assignment: Assignment
    "Who does what."
    times: StageTimes
    "Seconds of each stage alone."
    iteration_s: float
    "Seconds from one iteration to the next."
    epoch_s: float
    "Seconds of an epoch."
    num_iterations: int
    "Iterations of an epoch."
    edges_per_s: float
    "Sampled edges of an iteration over its seconds (equation 5; MTEPS are a millionth of it)."
    peak_bytes: int
    "Most bytes of mini-batches and gradients in one memory."

    @property
    def bottleneck(self) -> str:
        """The stage that takes longest, and where."""
        return bottleneck_of(self.times)


def predict(machine: Machine, job: AnyJob, assignment: Assignment) -> Prediction:
    """Simulate iterations with an assignment, on a machine that describes its trainers."""
    require_accelerators(machine, assignment.accelerators)
    work = iteration_work(machine, job, assignment)
    num_iterations = -(-job.num_train // assignment.total)
    simulated = min(_SIMULATED, num_iterations)
    plan = plan_of(job, assignment, work, num_iterations=simulated)
    timeline = simulate(
        plan,
        lambda step: resource_seconds(work, assignment, step)[0],
        machine_of(machine, assignment, work),
        tier="disk",
        step_cores=lambda step: resource_seconds(work, assignment, step)[1],
    )
    # The last operation of an iteration that takes time ends it.
    ends = [0.0] * simulated
    for span in timeline.spans:
        number = int(span.name.rpartition(" ")[2])
        ends[number] = max(ends[number], span.start_s + span.seconds)
    half = simulated // 2
    iteration_s = (ends[-1] - ends[half - 1]) / (simulated - half) if half else ends[-1]
    return Prediction(
        assignment=assignment,
        times=stage_times(machine, job, assignment),
        iteration_s=iteration_s,
        epoch_s=timeline.seconds + (num_iterations - simulated) * iteration_s,
        num_iterations=num_iterations,
        edges_per_s=work.num_edges / iteration_s,
        peak_bytes=plan.peak_bytes,
    )


def bottleneck_of(times: StageTimes) -> str:
    """The stage that takes longest; of stages that take the same, the one that feeds the others."""
    stages = {
        "sampling on the processor": times.sample,
        "sampling on the accelerators": times.sample_accelerator,
        "loading features from the host's memory": times.load,
        **{f"copies to {name}": seconds for name, seconds in times.transfer.items()},
        **{f"propagation on {name}": seconds for name, seconds in times.train.items() if name != HOST},
        "propagation on the processor": times.host_train,
    }
    return max(stages, key=lambda name: round(stages[name] / max(times.slowest, 1e-300), 2))


def best_split(
    machine: Machine, job: AnyJob, *, total: int, accelerators: tuple[str, ...], uses_host: bool = True
) -> Prediction:
    """The prediction with the split of seeds and threads under which the slowest stage is fastest.

    Args:
        machine: describes the trainers; as many threads are used as it has cores.
        job: what is trained.
        total: number of seeds of an iteration.
        accelerators: names of the accelerators.
        uses_host: whether the processor may train, too. It gets no seed where accelerators alone are faster.
    """
    require_accelerators(machine, accelerators)
    found: list[tuple[float, Assignment]] = []
    for with_host in {uses_host, False}:
        assignment = even_assignment(machine, total, accelerators, uses_host=with_host)
        for _ in range(_ROUNDS):
            times = stage_times(machine, job, assignment)
            found.append((times.slowest, assignment))
            if with_host:
                # Accelerators may be in the way however few seeds they have, as where each copy takes long.
                alone = replace(assignment, seeds=dict.fromkeys(assignment.seeds, 0) | {HOST: total})
                found.append((stage_times(machine, job, alone).slowest, alone))
            assignment = balanced(assignment, rates_of(assignment, times), uses_host=with_host)
    return predict(machine, job, min(found, key=lambda each: each[0])[1])


def even_assignment(
    machine: Machine, total: int, accelerators: tuple[str, ...], *, uses_host: bool = True
) -> Assignment:
    """Equal seeds for all trainers, and equal threads for all tasks."""
    names = ([HOST] if uses_host else []) + list(accelerators)
    seeds = {HOST: 0} | dict(zip(names, split_evenly(total, len(names)), strict=True))
    sample, load, train = split_evenly(max(machine.num_cores, 3), 3)
    return Assignment(seeds=seeds, threads=Threads(sample=sample, load=load, train=train))


def with_accelerators(machine: Machine, count: int) -> Machine:
    """The machine with ``count`` accelerators, all as its first one."""
    first = f"{ACCELERATOR}0"
    require_accelerators(machine, (first,))
    kept = {name: link for name, link in machine.links.items() if not name.startswith(ACCELERATOR)}
    names = accelerator_names(count)
    return replace(
        machine,
        devices=dict.fromkeys(names, machine.devices[first]),
        links=kept | {f"{name}.copy_in": machine.links[f"{first}.copy_in"] for name in names},
    )


def machine_here(name: str, num_cores: int, accelerators: Sequence[str]) -> Machine:
    """This machine for a :class:`~sagann.plan.hybrid.rehearsed.RehearsedJob`, which knows all seconds: no rate makes them longer.

    Args:
        name: of the machine.
        num_cores: cores of the processor's own tasks.
        accelerators: names of the accelerators.
    """
    instant = math.inf
    return Machine(
        name=name,
        num_cores=num_cores,
        matmul_flops=instant,
        stream_bytes=instant,
        gather_bytes=instant,
        gather_cached_bytes=instant,
        cache_bytes=1,
        exp_per_s=instant,
        copy_bytes=instant,
        pick_bytes=instant,
        step_s=0.0,
        disks={DISK: Disk(read_bytes_per_s=instant, cached_bytes_per_s=instant, write_bytes_per_s=instant)},
        devices={each: {} for each in accelerators},
        links={f"{each}.copy_in": Link(bytes_per_s=instant) for each in accelerators},
    )


def accelerator_names(count: int) -> tuple[str, ...]:
    """Names of the first accelerators."""
    return tuple(f"{ACCELERATOR}{number}" for number in range(count))


def require_accelerators(machine: Machine, names: tuple[str, ...]) -> None:
    """Raise InputError unless a machine describes accelerators and the links into them."""
    for name in names:
        if name not in machine.devices or f"{name}.copy_in" not in machine.links:
            known = [each for each in machine.devices if f"{each}.copy_in" in machine.links]
            raise InputError(
                f"machine lacks an accelerator: '{name}', and there are {', '.join(known) or 'none'} (in "
                f"{machine.name})",
                hint=f'Add [devices.{name}] with its rates and [links."{name}.copy_in"] with bytes_per_s to the machine\'s file.',
            )

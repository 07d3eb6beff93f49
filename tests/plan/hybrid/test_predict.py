"""Predictions are those of the equations in the steady state, and the best split is the best one."""

from __future__ import annotations

from itertools import product

import pytest

from sagann.errors import InputError
from sagann.plan.hybrid.assignment import HOST, StageTimes
from sagann.plan.hybrid.iterations import stage_times
from sagann.plan.hybrid.predict import (
    best_split,
    bottleneck_of,
    predict,
)
from sagann.plan.hybrid.work import Refinements, synchronisation_bytes
from tests.plan.hybrid.settings import FIRST, SECOND, assignment, job, machine


@pytest.mark.parametrize("seeds", [(100, 100), (400, 10), (1, 400), (0, 100, 300), (50, 0)])
def test_an_iteration_takes_its_slowest_stage(seeds: tuple[int, ...]) -> None:
    split = assignment(*seeds)
    found = predict(machine(), job(), split)
    times = found.times
    # Equation 9: the trainers' stage includes synchronisation, where there are several of them.
    synchronise_s = synchronisation_bytes(job().model_bytes) / 1e8 if sum(count > 0 for count in seeds) > 1 else 0.0
    propagation = max(times.train.values()) + synchronise_s
    expected = max(times.sample, times.load, *times.transfer.values(), propagation)
    assert found.iteration_s == pytest.approx(expected, rel=1e-6)
    assert found.num_iterations == -(-10_000 // sum(seeds))
    assert found.edges_per_s == pytest.approx(120 * sum(seeds) / found.iteration_s)


def test_an_epoch_is_its_iterations_and_the_filling_of_the_pipeline() -> None:
    split = assignment(100, 100)
    found = predict(machine(), job(), split)
    fill = found.times.sample + found.times.load + max(found.times.transfer.values())
    assert found.epoch_s == pytest.approx(found.num_iterations * found.iteration_s, rel=0.1)
    assert found.num_iterations * found.iteration_s <= found.epoch_s
    assert found.epoch_s <= found.num_iterations * found.iteration_s + 2 * fill + max(found.times.train.values())
    # A long epoch and one that is simulated whole agree.
    short = predict(machine(), job(num_train=200 * 16), split)
    longer = predict(machine(), job(num_train=200 * 17), split)
    assert longer.epoch_s - short.epoch_s == pytest.approx(found.iteration_s, rel=1e-6)


@pytest.mark.parametrize("uses_host", [True, False])
def test_the_best_split_is_that_of_a_search(uses_host: bool) -> None:
    described, given = machine(), job()
    found = best_split(described, given, total=200, accelerators=(FIRST, SECOND), uses_host=uses_host)
    assert found.assignment.total == 200
    assert found.assignment.threads.total == 8
    assert (found.assignment.seeds[HOST] > 0) is uses_host
    best = min(
        stage_times(
            described,
            given,
            assignment(host, first, 200 - host - first, sample=sample, load=load, train=8 - sample - load),
        ).slowest
        for host in (range(0, 101, 10) if uses_host else [0])
        for first in range(0, 201 - host, 10)
        for sample, load in product(range(1, 7), repeat=2)
        if sample + load < 8
    )
    assert found.times.slowest <= best * 1.001


def test_a_processor_that_would_only_be_in_the_way_does_not_train() -> None:
    # Every layer costs the processor a second.
    slow = machine(step_s=1.0, devices={FIRST: {"matmul_flops": 4e9, "gather_bytes": 4e9, "step_s": 1e-6}})
    found = best_split(slow, job(refinements=Refinements()), total=200, accelerators=(FIRST,))
    assert found.assignment.seeds == {HOST: 0, FIRST: 200}


def test_the_bottleneck_is_the_stage_that_feeds_the_others() -> None:
    times = StageTimes(sample=1, load=1, transfer={FIRST: 4}, train={HOST: 4.01, FIRST: 2})
    assert bottleneck_of(times) == f"copies to {FIRST}"
    assert bottleneck_of(StageTimes(sample=9, load=1, train={HOST: 4, FIRST: 2})) == "sampling on the processor"
    assert (
        predict(machine(), job(), assignment(400, 1, sample=3, load=4, train=1)).bottleneck
        == "propagation on the processor"
    )


def test_accelerators_that_the_machine_lacks_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"machine lacks an accelerator: 'accelerator2', and there are accelerator0, accel"
    ):
        predict(machine(), job(), assignment(1, 1, 1, 1))
    with pytest.raises(
        InputError, match=r"and there are none \(in round figures\)\. Add \[devices\.accelerator0\]"
    ):
        best_split(machine(links={}), job(), total=9, accelerators=(FIRST,))

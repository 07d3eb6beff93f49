"""Bytes and seconds are those of the equations, worked out on paper, and the best split is the best one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from sagann.errors import InputError
from sagann.hardware import KernelDesign, Training
from sagann.hardware.draw import drawn_hops, training_cycles
from sagann.hybrid.assignment import HOST, StageTimes
from sagann.hybrid.forecast import AS_PRINTED, BatchCounts, Refinements, best_split, predict
from sagann.plan.machine import Link
from tests.hybrid.settings import FIRST, SECOND, assignment, job, machine

COUNTS = BatchCounts(vertices=(1000, 100, 10), edges=(2000, 200))
# Sums over edges: 2000 x 25 x 4 bytes and 200 x 10 x 4 bytes at 1e9. Maps: 100 x 25 x 10 and 10 x 10 x 5 multiply-adds at 1e9.
GATHER, MAP = (2e-4, 8e-6), (2.5e-5, 5e-7)


def test_propagation_adds_sums_and_maps_and_takes_the_longer_where_they_are_pipelined() -> None:
    found = job().propagation_s(COUNTS, HOST, 8)
    assert found == pytest.approx(GATHER[0] + MAP[0] + GATHER[1] + MAP[1] + MAP[0] + GATHER[1] + MAP[1])
    pipelined = machine(devices={FIRST: {"pipelines_layers": True}})
    found = job(pipelined).propagation_s(COUNTS, FIRST, 1)
    assert found == pytest.approx(GATHER[0] + GATHER[1] + MAP[0] + GATHER[1])


def test_refinements_of_propagation() -> None:
    def seconds(refinements: Refinements) -> float:
        return job(refinements=refinements).propagation_s(COUNTS, HOST, 8)

    base = seconds(AS_PRINTED)
    assert seconds(replace(AS_PRINTED, launches=True)) == pytest.approx(base + 4 * 0.001)
    # The first layer's inputs are features, which get no gradient.
    assert seconds(replace(AS_PRINTED, both_gradients=True)) == pytest.approx(base + MAP[1])


def test_hardware_kernels_take_the_cycles_of_their_clock() -> None:
    on = machine(devices={FIRST: {"matmul_flops": 4e9, "kernel": {"frequency_hz": 1e6}}})
    given = job(on, refinements=replace(AS_PRINTED, clocks_kernels=True))
    training = Training(design=KernelDesign(), widths=(25, 10, 5), own=False)

    def clocked_s(seeds: int) -> float:
        counts = given.counts(seeds)
        return training_cycles(training, drawn_hops(counts.vertices, counts.edges, own=False)) / 1e6

    def seconds(seeds: int, **refinements: bool) -> float:
        changed = replace(given, refinements=replace(given.refinements, **refinements))
        return changed.propagation_s(given.counts(seeds), FIRST, 1)

    assert seconds(8) == clocked_s(8)
    # The next powers of two are asked; what is between them is close to its own cycles.
    assert seconds(12) == pytest.approx((clocked_s(8) + clocked_s(16)) / 2)
    assert seconds(12) == pytest.approx(clocked_s(12), rel=0.05)
    # Forward and backward are started, not each layer.
    assert seconds(8, launches=True) == pytest.approx(clocked_s(8) + 2 * 0.001)
    assert seconds(8, clocks_kernels=False) == job(on).propagation_s(given.counts(8), FIRST, 1)


def test_stage_times_on_paper() -> None:
    # For a seed: 120 edges, 121 vertices of layer 0, 11 of layer 1; features of 100 bytes.
    times = job().times(assignment(100, 200))
    assert times.sample == pytest.approx(300 * 120 / (2 * 1e6))
    assert times.load == pytest.approx(300 * 12_100 / 2e8)
    assert times.transfer == {FIRST: pytest.approx(200 * 12_100 / 1e8)}
    # The processor, half of its cores: 5e8 bytes and 5e8 multiply-adds per second; sums and maps one after the other.
    gather, maps = (110 * 100 * 100, 10 * 100 * 40), (11 * 100 * 250, 100 * 50)
    assert times.train[HOST] == pytest.approx((gather[0] + 2 * gather[1] + 2 * maps[0] + 2 * maps[1]) / 5e8)
    assert times.train[FIRST] == pytest.approx(
        2 * (max(gather[0] / 4e9, maps[0] / 2e9) + 2 * max(gather[1] / 4e9, maps[1] / 2e9) + maps[0] / 2e9)
    )


def test_loading_and_the_processors_sums_delay_each_other() -> None:
    split = assignment(100, 100)
    alone, shared = (
        job(refinements=each).times(split) for each in (AS_PRINTED, replace(AS_PRINTED, shares_memory=True))
    )
    # The sums at 1e9 bytes per second, which take less than the features of all trainers.
    delay_s = (110 * 100 * 100 + 2 * 10 * 100 * 40) / 1e9
    assert shared.load - alone.load == pytest.approx(delay_s)
    assert shared.train[HOST] - alone.train[HOST] == pytest.approx(delay_s)
    assert shared.train[FIRST] == alone.train[FIRST]


def test_links_share_their_switch() -> None:
    links = {f"{name}.copy_in": Link(bytes_per_s=1e8, switches=("root",)) for name in (FIRST, SECOND)}
    split = assignment(0, 100, 100)
    alone, shared = (
        job(machine(**given)).times(split).transfer for given in ({}, {"links": links, "switches": {"root": 1e8}})
    )
    assert {name: seconds / alone[name] for name, seconds in shared.items()} == pytest.approx({FIRST: 2, SECOND: 2})


@pytest.mark.parametrize("seeds", [(100, 100), (400, 10), (1, 400), (0, 100, 300), (50, 0)])
def test_an_iteration_takes_its_slowest_stage(seeds: tuple[int, ...]) -> None:
    split = assignment(*seeds)
    found = predict(job(), split)
    times = found.times
    # Equation 9: the trainers' stage includes synchronisation, where there are several of them.
    synchronise_s = 2 * 4 * (250 + 50) / 1e8 if sum(count > 0 for count in seeds) > 1 else 0.0
    propagation = max(times.train.values()) + synchronise_s
    expected = max(times.sample, times.load, *times.transfer.values(), propagation)
    assert found.iteration_s == pytest.approx(expected, rel=1e-6)
    assert found.num_iterations == -(-10_000 // sum(seeds))
    assert found.edges_per_s == pytest.approx(120 * sum(seeds) / found.iteration_s)


def test_an_epoch_is_its_iterations_and_the_filling_of_the_pipeline() -> None:
    split = assignment(100, 100)
    found = predict(job(), split)
    times = found.times
    trained = max(times.transfer.get(name, 0.0) + seconds for name, seconds in times.train.items())
    synchronise_s = 2 * 4 * (250 + 50) / 1e8
    first_s = times.sample + times.load + trained + synchronise_s
    assert found.epoch_s == pytest.approx(first_s + (found.num_iterations - 1) * found.iteration_s, rel=1e-6)


@pytest.mark.parametrize("uses_host", [True, False])
def test_the_best_split_is_that_of_a_search(uses_host: bool) -> None:
    given = job()
    found = best_split(given, total=200, accelerators=(FIRST, SECOND), uses_host=uses_host)
    assert found.assignment.total == 200
    assert found.assignment.threads.total == 8
    assert (found.assignment.seeds[HOST] > 0) is uses_host
    best = min(
        given.times(
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
    found = best_split(job(slow, refinements=Refinements()), total=200, accelerators=(FIRST,))
    assert found.assignment.seeds == {HOST: 0, FIRST: 200}


def test_the_bottleneck_is_the_stage_that_feeds_the_others() -> None:
    times = StageTimes(sample=1, load=1, transfer={FIRST: 4}, train={HOST: 4.01, FIRST: 2})
    assert times.bottleneck == f"copies to {FIRST}"
    assert StageTimes(sample=9, load=1, train={HOST: 4, FIRST: 2}).bottleneck == "sampling on the processor"
    assert (
        predict(job(), assignment(400, 1, sample=3, load=4, train=1)).times.bottleneck
        == "propagation on the processor"
    )


def test_accelerators_that_the_machine_lacks_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"machine lacks an accelerator: 'accelerator2', and there are accelerator0, accel"
    ):
        predict(job(), assignment(1, 1, 1, 1))
    with pytest.raises(
        InputError, match=r"and there are none \(in round figures\)\. Add \[devices\.accelerator0\]"
    ):
        best_split(job(machine(links={})), total=9, accelerators=(FIRST,))

"""Iterations are plans that keep every rule, and take the seconds that they take on paper."""

from __future__ import annotations

from typing import Any

import pytest

from sagann.plan.hybrid.assignment import HOST, Assignment
from sagann.plan.hybrid.iterations import (
    Job,
    Prefetch,
    iteration_work,
    machine_of,
    plan_of,
    resource_seconds,
    stage_times,
)
from sagann.plan.machine import Link
from sagann.plan.simulate import simulate
from sagann.plan.spec import verify
from sagann.plan.timeline import Timeline
from tests.plan.hybrid.settings import FIRST, SECOND, assignment, job, machine

PREFETCHES: tuple[Prefetch, ...] = ("none", "one stage", "two stages")


def timeline(given: Job, split: Assignment, iterations: int, **changes: Any) -> Timeline:
    described = machine(**changes)
    work = iteration_work(described, given, split)
    return simulate(
        plan_of(given, split, work, num_iterations=iterations),
        lambda step: resource_seconds(work, split, step)[0],
        machine_of(described, split, work),
        tier="disk",
        step_cores=lambda step: resource_seconds(work, split, step)[1],
    )


def spans(found: Timeline, resource: str) -> list[tuple[float, float]]:
    chosen = [each for each in found.spans if each.resource == resource]
    return sorted((each.start_s, each.start_s + each.seconds) for each in chosen)


@pytest.mark.parametrize("prefetch", PREFETCHES)
@pytest.mark.parametrize("seeds", [(100, 50, 70), (0, 10, 10), (10, 0), (5, 0, 5)])
def test_every_plan_keeps_the_rules(prefetch: Prefetch, seeds: tuple[int, ...]) -> None:
    given, split = job(prefetch=prefetch), assignment(*seeds)
    work = iteration_work(machine(), given, split)
    for iterations in (1, 2, 5):
        plan = plan_of(given, split, work, num_iterations=iterations)
        peaks = verify(plan)
        assert max(peaks.values()) <= plan.peak_bytes
        trained = [each for each in plan.operations if each.kind == "stage" and each.owner in split.seeds]
        assert len(trained) == iterations * sum(count > 0 for count in seeds)
    assert max(peaks.values()) == plan.peak_bytes


def test_stage_times_on_paper() -> None:
    # For a seed: 120 edges, 121 vertices of layer 0, 11 of layer 1; features of 100 bytes.
    times = stage_times(machine(), job(), assignment(100, 200))
    assert times.sample == pytest.approx(300 * 120 / (2 * 1e6))
    assert times.load == pytest.approx(300 * 12_100 / 2e8)
    assert times.transfer == {FIRST: pytest.approx(200 * 12_100 / 1e8)}
    # The processor, half of its cores: 5e8 bytes and 5e8 multiply-adds per second; sums and maps one after the other.
    gather, maps = (110 * 100 * 100, 10 * 100 * 40), (11 * 100 * 250, 100 * 50)
    assert times.train[HOST] == pytest.approx((gather[0] + 2 * gather[1] + 2 * maps[0] + 2 * maps[1]) / 5e8)
    assert times.train[FIRST] == pytest.approx(
        2 * (max(gather[0] / 4e9, maps[0] / 2e9) + 2 * max(gather[1] / 4e9, maps[1] / 2e9) + maps[0] / 2e9)
    )


@pytest.mark.parametrize("prefetch", PREFETCHES)
def test_how_far_stages_work_ahead(prefetch: Prefetch) -> None:
    given, split = job(prefetch=prefetch), assignment(1, 400)
    found = timeline(given, split, 6)
    times = stage_times(machine(), job(), split)
    load, copy = times.load, times.transfer[FIRST]
    loads, copies, trained = spans(found, "host.load"), spans(found, f"{FIRST}.copy_in"), spans(found, FIRST)
    assert [len(each) for each in (loads, copies, trained)] == [6, 6, 6]
    period = trained[4][0] - trained[3][0]
    if prefetch == "none":
        synchronise = spans(found, f"{FIRST}.synchronise")[0]
        assert period == pytest.approx(
            times.sample + load + copy + times.train[FIRST] + synchronise[1] - synchronise[0]
        )
    elif prefetch == "one stage":
        assert period == pytest.approx(load + copy)
        assert all(later[0] >= earlier[1] - 1e-9 for earlier, later in zip(copies, loads[1:], strict=False))
    else:
        # The copies are the slowest stage, and never wait.
        assert period == pytest.approx(max(copy, load))
        assert loads[3][0] < copies[2][1]
    # A batch is trained when it is copied, and after the one before.
    assert all(start >= copied[1] - 1e-9 for (start, _), copied in zip(trained, copies, strict=True))


def test_training_is_synchronous() -> None:
    # The second accelerator sums at half the rate, and does not pipeline: the first one waits for it in every iteration.
    found = timeline(job(), assignment(0, 100, 100), 5)
    first, second = spans(found, FIRST), spans(found, SECOND)
    assert all(one == other for (one, _), (other, _) in zip(first[1:], second[1:], strict=True))
    ends = spans(found, f"{FIRST}.synchronise")
    assert all(
        end[0] == pytest.approx(max(one[1], other[1])) for end, one, other in zip(ends, first, second, strict=True)
    )
    # 2 x 1200 bytes at 1e8.
    assert ends[0][1] - ends[0][0] == pytest.approx(2 * 4 * (250 + 50) / 1e8)


def test_links_share_their_switch() -> None:
    links = {f"{name}.copy_in": Link(bytes_per_s=1e8, switches=("root",)) for name in (FIRST, SECOND)}
    alone = timeline(job(), assignment(0, 100, 100), 1)
    shared = timeline(job(), assignment(0, 100, 100), 1, links=links, switches={"root": 1e8})
    (start, end), (shared_start, shared_end) = (spans(each, f"{FIRST}.copy_in")[0] for each in (alone, shared))
    assert shared_end - shared_start == pytest.approx(2 * (end - start))

"""Rates explain measured seconds, and move no further than they should."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sagann.plan.hybrid.assignment import HOST, StageTimes, Threads
from sagann.plan.hybrid.costs import Damping
from sagann.plan.hybrid.rates import rates_of, smoothed
from tests.plan.hybrid.settings import FIRST, assignment

SPLIT = assignment(100, 300, host_sampled=200)
TIMES = StageTimes(
    sample=1.0, sample_accelerator=4.0, load=2.0, transfer={FIRST: 5.0}, train={HOST: 3.0, FIRST: 4.0}
)


def test_rates_give_the_measured_times_back() -> None:
    found = rates_of(SPLIT, TIMES).times(SPLIT)
    assert (found.sample, found.sample_accelerator, found.load) == (1.0, 4.0, 2.0)
    assert (found.host_train, found.accelerator) == (3.0, 5.0)


def test_times_are_in_proportion_to_seeds_and_threads() -> None:
    other = replace(assignment(200, 200, host_sampled=100), threads=Threads(sample=1, load=4, train=2))
    found = rates_of(SPLIT, TIMES).times(other)
    assert found.sample == pytest.approx(1.0 * (100 / 200) * (2 / 1))
    assert found.sample_accelerator == pytest.approx(4.0 * 300 / 200)
    assert found.load == pytest.approx(2.0 * 2 / 4)
    assert found.host_train == pytest.approx(3.0 * 2 * 4 / 2)
    assert found.accelerator == pytest.approx(5.0 * 200 / 300)


def test_an_average_moves_by_its_weight_and_is_clipped() -> None:
    damping = Damping(weight=0.25, clip=2.0)
    before = rates_of(SPLIT, TIMES)
    assert smoothed(None, before, damping) == before
    twice, tenfold = (
        smoothed(before, rates_of(SPLIT, replace(TIMES, load=times * TIMES.load)), damping) for times in (2, 10)
    )
    assert twice.load == pytest.approx(1.25 * before.load)
    assert tenfold == twice
    less = smoothed(before, rates_of(SPLIT, replace(TIMES, load=0.01)), damping)
    assert less.load == pytest.approx(0.875 * before.load)


def test_a_trainer_without_seeds_keeps_its_rate() -> None:
    before = rates_of(SPLIT, TIMES)
    idle = rates_of(assignment(0, 400), replace(TIMES, train={HOST: 0.0, FIRST: 5.0}))
    assert HOST not in idle.train
    assert smoothed(before, idle, Damping()).train[HOST] == before.train[HOST]
    assert smoothed(idle, before, Damping()).train[HOST] == before.train[HOST]

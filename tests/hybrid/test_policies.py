"""Policies settle at the best split, hold still under noise, and follow a trainer that slows down."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given, strategies as st

from sagann.hybrid.assignment import HOST, Assignment, StageTimes, Threads
from sagann.hybrid.costs import Cost, CostFit
from sagann.hybrid.policies import Balance, next_balance
from tests.hybrid.settings import FIRST, assignment

RATIOS = (1, 2, 4)
"Times as fast as the whole processor that the accelerator propagates."
CLOSE = 1.05
"Times the best iteration that count as settled."
NOISE = 0.1
"Standard deviation of the logarithm of a measured second over the true one."
HORIZON = 30
"Iterations in which a policy is to settle."


def decided(split: Assignment, **times: float) -> Balance:
    """Algorithm 1 on measured times; the accelerator's are named ``accelerator`` and ``copies``."""
    measured = StageTimes(
        sample=times["sample"],
        load=times["load"],
        transfer={FIRST: times.get("copies", 0.0)},
        train={HOST: times["train"], FIRST: times["accelerator"]},
    )
    return next_balance("hyscale", Balance(assignment=split), measured)


@pytest.fixture
def whole_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions go all the way to equal times."""
    monkeypatch.setattr("sagann.hybrid.balance.GAIN", 1.0)


@pytest.mark.usefixtures("whole_way")
def test_every_case_of_algorithm_1() -> None:
    split = assignment(100, 100, sample=4, load=4, train=4)
    # T_Accel, here its copies: line 14.
    found = decided(split, sample=1, load=1, train=1, accelerator=2, copies=3)
    assert found.assignment.seeds == {HOST: 150, FIRST: 50}
    assert found.why == "50 seeds go to the processor: training takes 1 s on the processor, 3 s on accelerators."
    # T_Load: line 16, from the fastest task of the processor.
    found = decided(split, sample=1, load=4, train=2, accelerator=2)
    assert found.assignment.threads == Threads(sample=2, load=6, train=4)
    assert found.why == (
        "Sampling gets 2 threads fewer, loading gets 2 threads more: loading takes 4 s on the processor, sampling 1 s."
    )
    # T_SC: line 23.
    found = decided(split, sample=4, load=1, train=3, accelerator=3)
    assert found.assignment.threads.load < 4 < found.assignment.threads.sample
    # T_TC: lines 27 and 31.
    found = decided(split, sample=2, load=2, train=4, accelerator=1)
    assert found.assignment.seeds == {HOST: 40, FIRST: 160}
    found = decided(split, sample=1, load=2, train=4, accelerator=3)
    assert found.assignment.threads.sample < 4 < found.assignment.threads.train


@pytest.mark.usefixtures("whole_way")
def test_the_next_task_gives_where_the_fastest_has_one_thread() -> None:
    split = assignment(100, 100, sample=1, load=4, train=4)
    found = decided(split, sample=1, load=2, train=8, accelerator=3)
    assert found.assignment.threads.sample == 1
    assert found.assignment.threads.load < 4
    found = decided(assignment(100, 100, sample=1, load=1, train=4), sample=1, load=2, train=8, accelerator=3)
    assert found.assignment.threads == Threads(sample=1, load=1, train=4)
    # No thread can be given: the accelerator gets seeds instead.
    assert found.why.startswith("45 seeds go from the processor")


def test_joint_says_what_it_expects() -> None:
    split = assignment(100, 100, sample=4, load=4, train=4)
    times = StageTimes(sample=0.001, load=0.001, train={HOST: 0.030, FIRST: 0.010})
    found = next_balance("joint", Balance(assignment=split), times)
    assert found.assignment.seeds[HOST] < 100
    assert found.why.endswith("ms per iteration, was 30 ms.")
    again = next_balance("joint", found, found.rates.times(found.assignment)) if found.rates else found
    assert again.assignment == found.assignment
    assert again.why.startswith("No other split is estimated to take 3% less than")


# Trainers whose seconds are a + b n; parts of the seconds that the processor's seeds would take alone.
SEEDS = 1000
FIXED = [(0.0, 0.0), (0.3, 0.3), (0.0, 0.5), (1.5, 0.0)]
"Fixed parts of the processor and of the accelerator."
DELAY = 3
"Iterations that are prepared before a decision reaches them, as in a run."


def trainers(fixed: tuple[float, float], ratio: float) -> dict[str, Cost]:
    """The processor, and an accelerator that is ``ratio`` times as fast but for what they differ in by fixed parts."""
    return {
        HOST: Cost(fixed_s=fixed[0], seed_s=1 / SEEDS),
        FIRST: Cost(fixed_s=fixed[1] / ratio, seed_s=1 / SEEDS / ratio),
    }


def slowest_s(costs: dict[str, Cost], host: int) -> float:
    return max(costs[HOST].of(host), costs[FIRST].of(SEEDS - host))


def over_best(
    costs_at: Callable[[int], dict[str, Cost]], iterations: int, *, seed: int, host: int = SEEDS // 2
) -> list[float]:
    """True seconds of the iterations that ``joint`` shares out, each over those of the best static split, from a number of the processor's seeds."""
    generator = random.Random(seed)
    first = assignment(host, SEEDS - host, sample=1, load=1, train=1)
    balance, prepared, found = Balance(assignment=first), [first] * DELAY, []
    best = cache(lambda costs: min(slowest_s(dict(costs), each) for each in range(SEEDS + 1)))
    for number in range(iterations):
        prepared.append(balance.assignment)
        ran, costs = prepared.pop(0), costs_at(number)
        train = {
            name: costs[name].of(seeds) * math.exp(generator.gauss(0.0, NOISE)) for name, seeds in ran.seeds.items()
        }
        times = StageTimes(sample=1e-6, load=1e-6, train=train)
        balance = next_balance("joint", balance, times, ran_with=ran)
        found.append(slowest_s(costs, ran.seeds[HOST]) / best(tuple(costs.items())))
    return found


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("fixed", FIXED)
def test_learns_what_a_minibatch_costs_by_itself(fixed: tuple[float, float], ratio: int) -> None:
    costs = trainers(fixed, ratio)
    # With ten seeds, seconds for a seed make a trainer 30 times as slow as the other.
    for host in (SEEDS // 2, 10, SEEDS - 10) if fixed == (0.3, 0.3) else (SEEDS // 2,):
        for seed in range(2):
            assert mean(over_best(lambda _: costs, 2 * HORIZON, seed=seed, host=host)[HORIZON:]) < CLOSE


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("fixed", FIXED)
def test_rebalances_a_trainer_that_halves_its_speed(fixed: tuple[float, float], ratio: int) -> None:
    before, after = trainers(fixed, ratio), trainers(fixed, ratio)
    after[FIRST] = after[FIRST].times(2.0)
    found = [
        mean(
            over_best(lambda number: before if number < HORIZON else after, 3 * HORIZON, seed=seed)[HORIZON + 20 :]
        )
        for seed in range(5)
    ]
    assert mean(found) < CLOSE


def test_a_trainer_that_is_slow_by_itself_is_left_out_and_tried_again() -> None:
    slow, fast = trainers((0.0, 3.0), 1), trainers((0.0, 0.1), 1)
    found = over_best(lambda number: slow if number < 100 else fast, 1000, seed=1)
    assert mean(found[HORIZON:100]) < CLOSE
    # Only while it was not tried is the best split another one.
    assert mean(found[-100:]) < CLOSE


@given(pairs=st.lists(st.tuples(st.integers(1, 4096), st.floats(1e-6, 1e3)), min_size=1, max_size=40))
def test_whatever_is_measured_costs_are_ones(pairs: list[tuple[int, float]]) -> None:
    fit = CostFit.of(*pairs[0])
    for pair in pairs[1:]:
        fit = fit.after(CostFit.of(*pair))
    found = fit.cost()
    assert found.fixed_s >= 0
    assert found.seed_s > 0
    assert math.isfinite(found.fixed_s + found.seed_s)
    assert found.of(0) == 0

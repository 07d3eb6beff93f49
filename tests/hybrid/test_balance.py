"""Moves of seeds and threads keep their totals, and bring times closer."""

from __future__ import annotations

from hypothesis import given, strategies as st

from sagann.hybrid.assignment import HOST, Assignment, Threads, split_by
from sagann.hybrid.balance import (
    balance_thread,
    balance_work,
    balanced,
    seconds_together,
    split_together,
)
from sagann.hybrid.costs import Cost, CostFit, Rates
from tests.hybrid.settings import FIRST, assignment

seconds = st.floats(0, 1e3)
TASKS = ("sample", "load", "train")


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    others = draw(st.lists(st.integers(0, 500), min_size=1, max_size=5))
    host = draw(st.integers(0, 500))
    # As many seeds as trainers, at least.
    others[0] += len(others) + 1
    sample, load, train = (draw(st.integers(1, 6)) for _ in range(3))
    return assignment(host, *others, sample=sample, load=load, train=train)


def require_same_totals(before: Assignment, after: Assignment) -> None:
    assert after.total == before.total
    assert after.threads.total == before.threads.total
    assert list(after.seeds) == list(before.seeds)
    assert min(after.seeds.values()) >= 0
    assert min(after.threads.sample, after.threads.load, after.threads.train) >= 1


@given(before=assignments(), tasks=st.permutations(TASKS), first_s=seconds, second_s=seconds)
def test_moves_keep_their_totals(before: Assignment, tasks: list[str], first_s: float, second_s: float) -> None:
    require_same_totals(before, balance_work(before, first_s, second_s))
    after = balance_thread(before, tasks[0], tasks[1], first_s, second_s)
    require_same_totals(before, after)
    assert after.seeds == before.seeds
    assert getattr(after.threads, tasks[1]) >= getattr(before.threads, tasks[1])


rates = st.builds(
    Rates,
    sample=seconds,
    load=seconds,
    fits=st.dictionaries(
        st.sampled_from([HOST, *(f"accelerator{at}" for at in range(5))]),
        st.builds(CostFit.of, st.integers(1, 500), seconds),
    ),
)


@given(before=assignments(), known=rates, uses_host=st.booleans())
def test_the_joint_optimum_keeps_totals(before: Assignment, known: Rates, uses_host: bool) -> None:
    after = balanced(before, known, uses_host=uses_host)
    require_same_totals(before, after)
    assert uses_host or after.seeds[HOST] == 0
    # A trainer that nothing is known of gets a seed, so that something becomes known.
    trainers = before.seeds if uses_host else before.accelerators
    assert all(after.seeds[name] for name in trainers if not known.cost(name, 1))


costs = st.builds(Cost, fixed_s=st.floats(0, 1e3), seed_s=st.floats(1e-3, 1e3))


@given(by_name=st.dictionaries(st.sampled_from("abcdef"), costs, min_size=1), total=st.integers(1, 300))
def test_trainers_end_together(by_name: dict[str, Cost], total: int) -> None:
    shares = split_together(by_name, total)
    assert sum(shares.values()) == total
    assert min(shares.values()) >= 0
    ends = {name: cost.of(shares[name]) for name, cost in by_name.items()}
    slowest = max(ends, key=ends.__getitem__)
    assert ends[slowest] >= seconds_together(by_name, total) * (1 - 1e-9)
    # No seed of the slowest one ends earlier anywhere else.
    for name, cost in by_name.items():
        assert name == slowest or cost.of(shares[name] + 1) >= ends[slowest] * (1 - 1e-9)


@given(
    host=costs,
    accelerators=st.lists(costs, min_size=1, max_size=3),
    sample=st.floats(0, 10),
    load=st.floats(0, 10),
    threads=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 30)),
)
def test_the_number_of_threads_that_train_is_that_of_a_search(
    host: Cost, accelerators: list[Cost], sample: float, load: float, threads: tuple[int, int, int]
) -> None:
    before = assignment(100, *(100 for _ in accelerators), sample=threads[0], load=threads[1], train=threads[2])
    by_name = dict(zip(before.seeds, (host, *accelerators), strict=True))
    fits = {name: fit_of(cost) for name, cost in by_name.items()}
    known = Rates(sample=sample, load=load, fits=fits)

    def slowest(train: int, sampling: int) -> float:
        loading = sum(threads) - train - sampling
        trainers = {name: known.cost(name, train) or host for name in by_name}
        together_s = seconds_together(trainers, before.total)
        return max(together_s, sample * before.total / sampling, load * before.total / loading)

    def most(train: int) -> float:
        return min(slowest(train, sampling) for sampling in range(1, sum(threads) - train))

    found = balanced(before, known).threads
    best = min(map(most, range(1, sum(threads) - 1)))
    assert slowest(found.train, found.sample) <= best * (1 + 1e-9)


def fit_of(cost: Cost) -> CostFit:
    """What two shares of a trainer with such a cost have taught."""
    return CostFit.of(40, cost.of(40)).after(CostFit.of(90, cost.of(90)))


def test_work_goes_a_part_of_the_way_to_equal_times() -> None:
    # 300 seeds for 3 s and 100 for 2 s: 100 and 50 seeds a second, so 400 seeds are even at 267 and 133.
    before = assignment(300, 100)
    assert balance_work(before, 3.0, 2.0).seeds == {HOST: 283, FIRST: 117}
    assert balance_work(before, 3.0, 3.05) == before
    assert sum(balance_work(assignment(10, 40, 51), 2.0, 1.0).seeds.values()) == 101


def test_threads_go_to_the_slower_task() -> None:
    before = assignment(sample=10, load=10, train=10)
    # 10 threads take 1 s and 3 s; 5 and 15 threads would take 2 s each, and half of the way is gone.
    assert balance_thread(before, "sample", "load", 1.0, 3.0).threads == Threads(sample=8, load=12, train=10)
    assert balance_thread(before, "sample", "load", 3.0, 1.0) == before
    # At least one thread.
    assert balance_thread(before, "sample", "load", 1.0, 1.2).threads.load == 11
    # The giver would then be the slower one.
    assert balance_thread(before, "sample", "load", 1.0, 1.1) == before


weights = st.dictionaries(st.text(min_size=1), st.floats(0, 1e6), min_size=1, max_size=9)


@given(total=st.integers(0, 10_000), given_weights=weights, fewest=st.integers(0, 3))
def test_shares_add_up_and_are_near_their_weights(total: int, given_weights: dict[str, float], fewest: int) -> None:
    total += fewest * len(given_weights)
    shares = split_by(total, given_weights, fewest=fewest)
    assert sum(shares.values()) == total
    assert list(shares) == list(given_weights)
    assert min(shares.values()) >= fewest
    free, scale = total - fewest * len(shares), sum(given_weights.values())
    if scale:
        for name, share in shares.items():
            assert abs(share - fewest - free * given_weights[name] / scale) <= 1 + 1e-6 * free

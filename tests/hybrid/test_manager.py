"""Who gets how many seeds and threads, before and after iterations were measured."""

from __future__ import annotations

import pytest

from sagann.hybrid.assignment import Assignment, StageTimes, Threads
from sagann.hybrid.manager import WARM_UP, Manager


def manager_of(policy: str = "joint", *, batch_size: int = 100, uses_host: bool = True) -> Manager:
    return Manager(policy, {"host": 1, "accelerator0": 3}, batch_size=batch_size, uses_host=uses_host)


def times_of(assignment: Assignment, seed_s: dict[str, float]) -> StageTimes:
    """Seconds of trainers that take so long for a seed."""
    train = {name: count * seed_s[name] for name, count in assignment.seeds.items()}
    return StageTimes(sample=1e-4, load=1e-4, transfer={"accelerator0": 1e-5}, train=train)


def run(manager: Manager, seed_s: dict[str, float], iterations: int) -> None:
    for _ in range(iterations):
        assignment = manager.assignment
        times = times_of(assignment, seed_s)
        manager.work.count(assignment, times, times.slowest, manager.why)
        manager.learn(assignment, times)


def test_seeds_begin_in_proportion_to_cores() -> None:
    # Beside a seed for each.
    assert manager_of().assignment.seeds == {"host": 26, "accelerator0": 74}
    assert manager_of(uses_host=False).assignment.seeds == {"host": 0, "accelerator0": 100}


def test_a_processor_that_does_not_train_samples_and_loads_with_all_threads() -> None:
    cores = {"host": 16, "cuda:0": 16}
    found = Manager("joint", cores, batch_size=100, uses_host=False).assignment.threads
    assert found == Threads(sample=7, load=7, train=2)
    assert Manager("joint", cores, batch_size=100, uses_host=True).assignment.threads == Threads(
        sample=1, load=1, train=14
    )
    cores["host"] = 1
    assert Manager("joint", cores, batch_size=100, uses_host=False).assignment.threads.total == 3


@pytest.mark.parametrize("policy", ["joint", "hyscale"])
def test_seeds_follow_measured_speeds(policy: str) -> None:
    manager = manager_of(policy)
    run(manager, {"host": 1e-3, "accelerator0": 4e-3}, 30)
    assert manager.assignment.seeds["host"] == pytest.approx(80, abs=4)
    assert manager.work.num_moves > 0
    assert manager.why
    # The accelerator becomes as fast as the host.
    run(manager, {"host": 1e-3, "accelerator0": 1e-3}, 30)
    assert manager.assignment.seeds["host"] == pytest.approx(50, abs=3)


def test_static_moves_nothing() -> None:
    manager = manager_of("static")
    before = manager.assignment
    run(manager, {"host": 1e-3, "accelerator0": 9e-3}, 5)
    assert manager.assignment == before
    assert manager.work.num_moves == 0


def test_accelerators_are_balanced_where_the_processor_does_not_train() -> None:
    cores = {"host": 4, "accelerator0": 1, "accelerator1": 1}
    for policy, expected in (("joint", 75), ("hyscale", 50)):
        manager = Manager(policy, cores, batch_size=100, uses_host=False)
        for _ in range(30):
            assignment = manager.assignment
            train = {"host": 0.0, "accelerator0": 1e-3, "accelerator1": 3e-3}
            seconds = {name: count * train[name] for name, count in assignment.seeds.items()}
            manager.learn(assignment, StageTimes(sample=1e-4, load=1e-4, transfer={}, train=seconds))
        assert manager.assignment.seeds["host"] == 0
        assert manager.assignment.seeds["accelerator0"] == pytest.approx(expected, abs=3)
    assert manager.why == "Algorithm 1 moves nothing where the processor does not train."


def test_a_small_iteration_keeps_the_shares_and_teaches_nothing() -> None:
    manager = manager_of()
    small = manager.share_out(8)
    assert small.seeds == {"host": 2, "accelerator0": 6}
    assert small.threads == manager.assignment.threads
    before = manager.assignment
    for _ in range(WARM_UP + 1):
        manager.learn(small, times_of(small, {"host": 1.0, "accelerator0": 1e-3}))
    assert manager.assignment == before


def test_iterations_that_compile_teach_nothing() -> None:
    manager = manager_of()
    before = manager.assignment
    run(manager, {"host": 1e-3, "accelerator0": 5.0}, WARM_UP)
    assert manager.assignment == before
    assert manager.work.seeds == {"host": WARM_UP * 26, "accelerator0": WARM_UP * 74}
    run(manager, {"host": 1e-3, "accelerator0": 1e-3}, 2)
    assert manager.assignment.seeds["host"] == pytest.approx(50, abs=3)


def test_a_saved_assignment_goes_on_where_trainers_cores_and_batches_are_the_same() -> None:
    first = manager_of()
    run(first, {"host": 0.01, "accelerator0": 0.001}, 12)
    state = first.state_dict()
    assert state["seeds"]["accelerator0"] > 74
    again = manager_of()
    assert again.load_state_dict({**state, "seeds": dict(reversed(state["seeds"].items()))})
    assert again.assignment == first.assignment
    assert list(again.assignment.seeds) == ["host", "accelerator0"]
    for other in (
        manager_of(batch_size=99),
        Manager("joint", {"host": 1, "cuda:0": 3}, batch_size=100, uses_host=True),
    ):
        before = other.assignment
        assert not other.load_state_dict(state)
        assert other.assignment == before
    # Other speeds are expected of other numbers of cores.
    assert not Manager("joint", {"host": 1, "accelerator0": 2}, batch_size=100, uses_host=True).load_state_dict(
        state
    )

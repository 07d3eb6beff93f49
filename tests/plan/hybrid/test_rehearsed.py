"""A rehearsed job takes the seconds of its rehearsal, and its iterations are simulated as any other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sagann.errors import InputError
from sagann.plan.hybrid.assignment import HOST
from sagann.plan.hybrid.iterations import stage_times
from sagann.plan.hybrid.predict import best_split, machine_here, predict
from sagann.plan.hybrid.rehearsed import RehearsedJob, RehearsedShare
from tests.plan.hybrid.settings import FIRST, SECOND, assignment

SYNCHRONISE_S = 0.004
COPY_S, COPY_CORE_S = 0.010, 0.002


def share(seeds: int, *, train_s: float, is_sent: bool) -> RehearsedShare:
    """A share of round figures: 4 microseconds a seed of sampling, 10 of loading."""
    return RehearsedShare(
        seeds=seeds,
        edges=10 * seeds,
        loaded_bytes=100 * seeds,
        copied_bytes=200 * seeds if is_sent else 0,
        sample_s=4e-6 * seeds,
        load_s=1e-5 * seeds,
        copy_s=COPY_S if is_sent else 0.0,
        copy_core_s=COPY_CORE_S if is_sent else 0.0,
        train_s=train_s,
    )


def job(**changes: Any) -> RehearsedJob:
    """The processor needs 5 ms and 50 microseconds a seed, the accelerator 40 a seed."""
    given: dict[str, Any] = {
        "num_train": 10_000,
        "shares": {
            HOST: tuple(share(each, train_s=0.005 + 5e-5 * each, is_sent=False) for each in (250, 500, 1000)),
            FIRST: tuple(share(each, train_s=4e-5 * each, is_sent=True) for each in (250, 500, 1000)),
        },
        "threads": 1,
        "model_bytes": 4000,
        "synchronise_s": SYNCHRONISE_S,
    }
    return RehearsedJob(**(given | changes))


def machine(num_cores: int = 8, *names: str) -> Any:
    return machine_here("here", num_cores, names or (FIRST,))


def test_between_and_below_the_sizes_a_share_is_on_a_line() -> None:
    host = job().share_of(HOST, 750)
    assert (host.seeds, host.edges, host.loaded_bytes) == (750, 7500, 75_000)
    assert host.train_s == pytest.approx(0.005 + 0.0375)
    # What an iteration costs by itself is there for few seeds, too.
    assert job().share_of(HOST, 1).train_s == pytest.approx(0.005 + 5e-5)
    # Noise may bring the line through the smallest sizes below 0.
    steep = (share(250, train_s=0.001, is_sent=True), share(500, train_s=0.050, is_sent=True))
    assert job(shares={FIRST: steep}).share_of(FIRST, 10).train_s == 0


def test_stages_take_what_was_rehearsed() -> None:
    times = stage_times(machine(), job(threads=4), assignment(500, 500, sample=2, load=4, train=2))
    assert times.sample == pytest.approx(1000 * 4e-6 / 2)
    assert times.load == pytest.approx(1000 * 1e-5 / 4)
    assert times.transfer[FIRST] == pytest.approx(COPY_S)
    # Four threads were rehearsed.
    assert times.train == {HOST: pytest.approx(0.030 * 4 / 2), FIRST: pytest.approx(0.020)}


def test_on_a_single_core_all_tasks_of_the_processor_add_up() -> None:
    split = assignment(500, 500, sample=1, load=1, train=1)
    busy_s = 1000 * 4e-6 + 1000 * 1e-5 + COPY_CORE_S + 0.030
    found = predict(machine(1), job(), split)
    assert found.times.host_train == pytest.approx(busy_s)
    assert found.iteration_s == pytest.approx(busy_s + SYNCHRONISE_S, rel=1e-6)
    assert found.bottleneck == "propagation on the processor"
    # A slow accelerator leaves the core time for them.
    slow = tuple(replace(each, train_s=4 * each.train_s) for each in job().shares[FIRST])
    found = predict(machine(1), job(shares={**job().shares, FIRST: slow}), split)
    assert found.iteration_s == pytest.approx(0.080 + SYNCHRONISE_S, rel=1e-6)
    assert found.bottleneck == f"propagation on {FIRST}"


def test_accelerators_that_are_only_in_the_way_get_no_seeds() -> None:
    # With 40 seeds the processor needs 7 ms, and a copy alone 10 ms.
    found = best_split(machine(3), job(), total=40, accelerators=(FIRST,))
    assert found.assignment.seeds == {HOST: 40, FIRST: 0}
    assert found.iteration_s == pytest.approx(0.007 + SYNCHRONISE_S, rel=1e-6)
    with_more = best_split(machine(3, FIRST, SECOND), job(), total=40, accelerators=(FIRST, SECOND))
    assert with_more.iteration_s == found.iteration_s


def test_more_seeds_than_were_rehearsed_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"more seeds than were rehearsed: 1001, rehearsed 1000 .* Rehearse with the batch size"
    ):
        predict(machine(), job(), assignment(500, 501))

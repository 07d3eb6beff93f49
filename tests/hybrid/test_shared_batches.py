"""Iterations are prepared by as many threads as the processor's tasks have."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from sagann.graph import demo_graph
from sagann.hybrid.assignment import Assignment, Threads
from sagann.hybrid.manager import Manager
from sagann.hybrid.shared_batches import Iteration, SharedBatches, filling_ahead
from sagann.runtime.loading import MiniBatches

STAGE_S = 0.02


class Slow(SharedBatches):
    """Sampling and loading sleep, so that they take no core."""

    def sample(self, iteration: Iteration, name: str, ids: Any) -> None:
        time.sleep(STAGE_S)
        iteration.sampled[name] = ids

    def load(self, iteration: Iteration, name: str) -> None:
        time.sleep(STAGE_S)
        iteration.sent[name] = None


class Accelerator:
    """Takes what it is sent."""

    divides_blocks = True
    making_rows = staticmethod(nullcontext)

    def begin(self) -> None:
        pass

    def send(self, packed: Any) -> Any:
        return packed


def batches_of(cores: int, *, ahead: int | None = None) -> tuple[SharedBatches, Manager]:
    minibatches = MiniBatches(demo_graph(), fanouts=[3, 3], batch_size=1, seeds=torch.arange(120))
    manager = Manager("static", {"host": cores, "accelerator0": 1}, batch_size=1, uses_host=False)
    trainers: Any = {"accelerator0": Accelerator()}
    return Slow(minibatches, manager, trainers, ahead=ahead), manager


def pace_of(batches: SharedBatches) -> tuple[float, Iteration]:
    """Seconds from one iteration to the next, after some of them; and the last iteration."""
    with batches.iterations(1) as iterations:
        for _ in range(30):
            next(iterations)
        since_s = time.perf_counter()
        for _ in range(60):
            last = next(iterations)
        return (time.perf_counter() - since_s) / 60, last


@pytest.mark.alone
def test_all_threads_work_and_iterations_come_as_fast_as_is_told() -> None:
    batches, manager = batches_of(16)
    assert manager.assignment.threads == Threads(sample=7, load=7, train=2)
    assert batches.ahead == filling_ahead(manager.assignment.threads) == 15
    pace_s, last = pace_of(batches)
    times = last.times({})
    # 20 ms by seven threads are 2.9 ms; two iterations at a time would make it 20.
    assert times.sample == pytest.approx(STAGE_S / 7, rel=0.5)
    assert pace_s < 2 * STAGE_S / 7


@pytest.mark.parametrize(("cores", "ahead"), [(1, 2), (3, 3), (16, 15)])
def test_no_more_is_prepared_ahead_than_cores_can_work_on(cores: int, ahead: int) -> None:
    assert batches_of(cores)[0].ahead == ahead


def test_more_threads_for_sampling_and_loading_prepare_more_ahead() -> None:
    batches, manager = batches_of(16)
    now = manager.assignment
    manager.start_from(Assignment(seeds=now.seeds, threads=Threads(sample=1, load=2, train=13)), "static")
    assert batches.ahead == 4
    with batches.iterations(1) as iterations:
        next(iterations)
        time.sleep(20 * STAGE_S)
        # The one that was taken keeps its place until the next one is asked for.
        assert iterations.counters[0].items == 4
        manager.start_from(Assignment(seeds=now.seeds, threads=Threads(sample=3, load=3, train=10)), "static")
        next(iterations)
        time.sleep(20 * STAGE_S)
        assert iterations.counters[0].items == 1 + 7

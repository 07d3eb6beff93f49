"""What trainers share: batches, memory and gradients."""

from __future__ import annotations

import gc
import math
import os
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.errors import TrainerError
from sagann.graph import demo_graph
from sagann.hybrid.assignment import Assignment, Threads
from sagann.hybrid.manager import Manager
from sagann.hybrid.served import SharedPiece, received
from sagann.hybrid.shared_batches import Iteration, SharedBatches, filling_ahead
from sagann.hybrid.synchronise import Synchroniser, require_finite
from sagann.hybrid.trainer import Elapsed, Exchange, Found
from sagann.runtime.loading import MiniBatches


def test_a_parameter_without_gradient_keeps_none_and_one_of_others_alone_gets_theirs() -> None:
    used, unused, first = (torch.zeros(2, requires_grad=True) for _ in range(3))
    first.grad = torch.ones(2)
    parameters = [used, unused, first]
    there = Exchange(parameters, torch.empty(Exchange.layout(parameters).num_bytes, dtype=torch.uint8))
    gradients = there.write(torch.tensor(2.0), [torch.full((2,), 3.0), None, torch.ones(2)])
    found = Found(numbers=there.numbers, elapsed=Elapsed(), gradients=gradients, memory=there.memory)
    assert Synchroniser(parameters).add("host", found, torch.tensor(1.0)).item() == 3.0
    assert found.numbers.tolist() == [2.0, 3.0]
    assert torch.equal(used.grad, torch.full((2,), 3.0))
    assert unused.grad is None
    assert torch.equal(first.grad, torch.full((2,), 2.0))


@pytest.mark.parametrize("bad", [(math.nan, math.nan), (1.0, math.inf)])
def test_numbers_that_are_not_finite_name_their_trainer(bad: tuple[float, float]) -> None:
    good = (1.0, 0.5)
    with pytest.raises(TrainerError, match=r"trainer 'accelerator0' gave numbers.*epoch 2, batch 7"):
        require_finite({"host": good, "accelerator0": bad}, "epoch 2, batch 7")
    # If all have diverged, so has the run.
    require_finite({"host": bad, "accelerator0": bad}, "it")
    require_finite({"host": good, "accelerator0": good}, "it")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list descriptors")
@pytest.mark.parametrize("is_sent", [False, True])
def test_no_descriptor_and_no_name_is_left(is_sent: bool) -> None:
    # What earlier tests have left in cycles.
    gc.collect()
    names, pipes = set(os.listdir("/dev/shm")), Pipe()
    before = os.listdir("/proc/self/fd")
    piece = SharedPiece(100, "accelerator0")
    assert not [name for name in set(os.listdir("/dev/shm")) - names if str(os.getpid()) in name]
    if is_sent:
        piece.send(pipes[0], os.getpid())
        received(pipes[1], 100)
    del piece
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)


STAGE_S = 0.02


class Slow(SharedBatches):
    """Sampling and loading sleep, so that they take no core."""

    def sample(self, iteration: Iteration, name: str, seeds: Any, own: slice) -> None:
        time.sleep(STAGE_S)
        iteration.sampled[name] = seeds

    def load(self, iteration: Iteration, name: str) -> None:
        time.sleep(STAGE_S)
        iteration.sent[name] = None


class Accelerator:
    """Takes what it is sent."""

    divides_blocks = True

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

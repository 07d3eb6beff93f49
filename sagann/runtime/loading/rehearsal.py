"""Rehearsal: some mini-batches are made one at a time, and each stage is measured while nothing runs beside it.

A stage works on a thread like those of the pipeline, with the operators of one core. Where no batch is made ahead, it works on the
calling thread, as the pipeline's stages then do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from sagann.plan.pipeline import StageWork
from sagann.runtime.loading.minibatch import MiniBatch
from sagann.runtime.loading.minibatches import MiniBatches
from sagann.runtime.loading.serial_thread import work_serially
from sagann.runtime.loading.stages import Size, Stage
from sagann.runtime.processor import num_cores

# A stage that does nothing but wait still wants a little of a core.
_LEAST_CORES = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsedStage:
    """A stage's work on one batch."""

    name: str
    "Name of the stage."
    threads: int
    "Number of threads that the stage has in the pipeline."
    work: StageWork
    "Seconds, and cores that were busy."
    size: Size
    "Size of the result."


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsedBatch:
    """A batch, and what it took to make it."""

    number: int
    "Number of the batch in its epoch."
    batch: MiniBatch
    "The batch."
    stages: tuple[RehearsedStage, ...]
    "The stages, in order."


def rehearsed(
    minibatches: MiniBatches, epoch: int, numbers: Iterable[int]
) -> Generator[RehearsedBatch, None, None]:
    """Make some batches of an epoch, each when it is asked for. Whoever does not take all batches closes the iterator.

    The batches are those of ``minibatches.batches(epoch)``. An exception of a stage has a note that names stage and batch.
    """
    making = minibatches.stages(epoch)
    with ExitStack() as stack:
        run: Callable[..., Any] = _apply
        clock = time.process_time
        if minibatches.ahead:
            thread = stack.enter_context(ThreadPoolExecutor(1, "sagann-rehearsal", work_serially))
            run, clock = (lambda *call: thread.submit(*call).result()), time.thread_time
        for number in numbers:
            result: Any = number
            stages: list[RehearsedStage] = []
            for stage in making.stages:
                try:
                    result, measured = run(_measured_stage, stage, result, clock)
                except Exception as error:
                    error.add_note(f"Raised by stage '{stage.name}' of epoch {epoch}, batch {number}.")
                    raise
                stages.append(measured)
            yield RehearsedBatch(number=number, batch=making.receive(result), stages=tuple(stages))


class Stopwatch:
    """Measures work from its making on: seconds, and seconds of a clock that counts each busy core."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._since_s, self._core_since_s = time.perf_counter(), clock()

    def work(self) -> StageWork:
        """The work so far."""
        seconds, core_s = time.perf_counter() - self._since_s, self._clock() - self._core_since_s
        cores = core_s / seconds if seconds else 1.0
        return StageWork(seconds=seconds, cores=min(max(cores, _LEAST_CORES), num_cores()))


def _apply(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _measured_stage(stage: Stage, given: Any, clock: Callable[[], float]) -> tuple[Any, RehearsedStage]:
    watch = Stopwatch(clock)
    result = stage.work(given)
    size, work = stage.size_of(result), watch.work()
    return result, RehearsedStage(name=stage.name, threads=stage.threads, work=work, size=size)

"""Where the processor's core is busy while trainers share mini-batches: CPU seconds of each task, counted on the threads that do it."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import sagann.hybrid.manager
import sagann.hybrid.parcel
import sagann.hybrid.process_trainer
import sagann.hybrid.trainer
import sagann.train.hybrid_epochs
from sagann.runtime.loading import MiniBatches
from sagann.sampling import NeighborSampler
from sagann.sampling.sampled import Sampled

REST = "propagation of one trainer, optimizer, and the rest"
CHECKSUM, COPY = "checksum of what is copied", "copying to the accelerator"
PROTOCOL = "protocol and management: messages, weights that are copied, decisions"
TASKS: tuple[tuple[str, Any, str], ...] = (
    ("sampling", NeighborSampler, "sample"),
    ("sampling", Sampled, "prepare"),
    ("loading features", MiniBatches, "load"),
    (COPY, sagann.hybrid.process_trainer, "parcel_of"),
    (COPY, sagann.hybrid.parcel.Parcel, "write"),
    (CHECKSUM, sagann.hybrid.parcel, "checksum"),
    ("propagation", sagann.hybrid.trainer, "propagate"),
    (PROTOCOL, sagann.hybrid.manager.Manager, "learn"),
    (PROTOCOL, sagann.hybrid.manager.Manager, "count"),
    (PROTOCOL, sagann.hybrid.process_trainer.ProcessTrainer, "launch"),
    (PROTOCOL, sagann.hybrid.process_trainer.ProcessTrainer, "finish"),
    ("sum of the gradients, and whether all are finite", sagann.train.hybrid_epochs, "synchronised"),
)
"Each task with what does it: a class or module, and the name of its function. The checksum is within the copy."


class CoreSeconds:
    """CPU seconds of this process, by task."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Count from here on."""
        with self._guard:
            self._tasks: dict[str, float] = {}
        self._since_s = time.process_time()

    def by_task(self) -> dict[str, float]:
        """Seconds of each task since :meth:`clear`, and of all else."""
        total_s = time.process_time() - self._since_s
        with self._guard:
            found = dict(self._tasks)
        if COPY in found:
            found[COPY] -= found.get(CHECKSUM, 0.0)
        return found | {REST: total_s - sum(found.values())}

    def counted(self, task: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose CPU seconds are those of a task."""

        @functools.wraps(function)
        def counting(*arguments: Any, **named: Any) -> Any:
            since_s = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                with self._guard:
                    self._tasks[task] = self._tasks.get(task, 0.0) + time.thread_time() - since_s

        return counting


@contextmanager
def core_seconds() -> Iterator[CoreSeconds]:
    """Inside the ``with`` block, CPU seconds are counted by task. Work on threads of PyTorch or Numba beside the caller's counts as the rest."""
    found = CoreSeconds()
    with ExitStack() as stack:
        for task, owner, name in TASKS:
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, found.counted(task, original))
        yield found

"""Workers as threads of one process: what they send goes through queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import TypeVar

from torch import Tensor

from sagann.runtime.workers import Workers

T = TypeVar("T")
W = TypeVar("W", bound=Workers)


class Queues:
    """What is on its way, by sender, receiver and tag. The error of a sender ends all who wait for it."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int, int], Queue[Tensor]] = {}
        self._errors: dict[int, BaseException] = {}

    def put(self, sender: int, receiver: int, tag: int, tensor: Tensor) -> None:
        # In one operation: either end may be the first.
        self._queues.setdefault((sender, receiver, tag), Queue()).put(tensor)

    def get(self, sender: int, receiver: int, tag: int) -> Tensor:
        queue = self._queues.setdefault((sender, receiver, tag), Queue())
        for _ in range(2400):
            try:
                return queue.get(timeout=0.1)
            except Empty:
                if sender in self._errors:
                    raise self._errors[sender] from None
        raise TimeoutError

    def end(self, sender: int, error: BaseException) -> None:
        self._errors[sender] = error


class ThreadedWorkers(Workers):
    """One of several threads, as a worker."""

    def __init__(self, rank: int, size: int, queues: Queues) -> None:
        super().__init__(rank=rank, size=size)
        self._queues = queues

    def begin(
        self,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Tensor],
        doing: str,
        *,
        timeout_s: float | None = None,
        tag: int = 0,
    ) -> Callable[..., None]:
        for rank, tensor in sends.items():
            assert tensor.is_contiguous()
            if tensor.numel():
                self._queues.put(self.rank, rank, tag, tensor.detach().clone())
        self.sent_bytes += sum(tensor.nbytes for tensor in sends.values())

        def finish(timeout_s: float = 0.0) -> None:
            for rank, tensor in receives.items():
                assert tensor.is_contiguous()
                if tensor.numel():
                    tensor.copy_(self._queues.get(rank, self.rank, tag))

        return finish


def in_threads(
    work: Callable[[W], T], size: int, kind: Callable[[int, int, Queues], W] = ThreadedWorkers
) -> list[T]:
    """The results of ``work`` at every worker of a kind, in the order of the ranks."""
    queues = Queues()

    def ended(rank: int) -> T:
        workers = kind(rank, size, queues)
        try:
            return work(workers)
        except BaseException as error:
            queues.end(rank, error)
            raise
        finally:
            workers.close()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(ended, range(size)))

"""Workers as threads of one process: what they send goes through queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import TypeVar

from torch import Tensor

from sagann.runtime.workers import Workers

T = TypeVar("T")
W = TypeVar("W", bound=Workers)
Queues = Mapping[tuple[int, int, bool], "Queue[Tensor | BaseException]"]
"By sender, receiver, and whether it is for the threads beside those that compute. An error ends all who wait for its sender."


class ThreadedWorkers(Workers):
    """One of several threads, as a worker."""

    def __init__(self, rank: int, size: int, queues: Queues, *, is_beside: bool = False) -> None:
        super().__init__(rank=rank, size=size)
        self._queues, self._is_beside = queues, is_beside

    def beside(self) -> ThreadedWorkers:
        return ThreadedWorkers(self.rank, self.size, self._queues, is_beside=True)

    def begin(
        self,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Tensor],
        doing: str,
        *,
        timeout_s: float | None = None,
    ) -> Callable[[], None]:
        for rank, tensor in sends.items():
            assert tensor.is_contiguous()
            if tensor.numel():
                self._queues[self.rank, rank, self._is_beside].put(tensor.detach().clone())
        self.sent_bytes += sum(tensor.nbytes for tensor in sends.values())

        def finish() -> None:
            for rank, tensor in receives.items():
                self.waits_for = (rank,)
                assert tensor.is_contiguous()
                if tensor.numel():
                    found = self._queues[rank, self.rank, self._is_beside].get(timeout=240)
                    if isinstance(found, BaseException):
                        raise found
                    tensor.copy_(found)
            self.waits_for = ()

        return finish


def in_threads(
    work: Callable[[W], T], size: int, kind: Callable[[int, int, Queues], W] = ThreadedWorkers
) -> list[T]:
    """The results of ``work`` at every worker of a kind, in the order of the ranks."""
    ends = range(size)
    queues: Queues = {(one, other, beside): Queue() for one in ends for other in ends for beside in (False, True)}

    def ended(rank: int) -> T:
        try:
            return work(kind(rank, size, queues))
        except BaseException as error:
            for (sender, *_), queue in queues.items():
                if sender == rank:
                    queue.put(error)
            raise

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(ended, ends))

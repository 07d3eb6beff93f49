"""Pipeline: stages that work ahead of a caller, each on threads of its own, and hand over their results in order.

Numbered items go through all stages. At most ``ahead`` items are on their way: a stage that is faster than the caller waits. So the
memory is bounded, whichever stage is the slowest. A stage whose results are large may have a smaller bound for the items that have
entered it; the stages before it then work further ahead. The results do not depend on the numbers of threads or of items ahead.

An exception of a stage reaches the caller in the place of the item's result, after the results of earlier items.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-B (two-stage feature prefetch). We differ in that sampling is a stage as well, and
    in that bounds count the items of all later stages together.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, TypeVar

from sagann.runtime.loading.stages import Failed, Stage, StageCounters, Stages

R = TypeVar("R")

MOST_WAIT_S = 600.0
"Seconds after which an item that is not ready is an error, by default."


class Pipeline(Generic[R]):
    """An iterator over the results of items that go through stages ahead of the caller.

    Threads start at once. They end with the last item, with :meth:`close`, with a ``with`` block, and when the object is freed: a loop that
    is left early needs no care.

    Args:
        numbers: the items, in order. The first stage gets the number of an item.
        stages: the stages, in order.
        ahead: most items that are on their way to the caller; 0 does all work on the calling thread, without threads.
        item: name of an item, without its number, in errors.
        receive: called on the calling thread with the last stage's result; gives the caller's.
        most_wait_s: seconds after which an item that is not ready is an error.
        room: most items on their way now, at least 1, where that changes: asked before each item enters. None for ``ahead``.
        holds: whether an item that was taken keeps its place until :meth:`go_on`, or until the next one is asked for: then no work on a further
            item begins before the caller has done what is urgent.
    Raises:
        StalledError: an item is not ready in time.
    Example:
        >>> double = Stage(name="double", work=lambda number: 2 * number)
        >>> with Pipeline(range(3), [double], ahead=2) as results:
        ...     list(results)
        [0, 2, 4]
    """

    def __init__(
        self,
        numbers: range,
        stages: Sequence[Stage],
        *,
        ahead: int,
        item: str = "item",
        receive: Callable[[Any], R] = lambda result: result,
        most_wait_s: float = MOST_WAIT_S,
        room: Callable[[], int] | None = None,
        holds: bool = False,
    ) -> None:
        self._stages = Stages(
            numbers=numbers, stages=tuple(stages), ahead=ahead, item=item, room=room or (lambda: ahead), holds=holds
        )
        self._receive = receive
        self._most_wait_s = most_wait_s
        self._left_at_s: float | None = None
        # Freed on whatever thread, which may be one of the pipeline's: it must not wait.
        weakref.finalize(self, self._stages.signal).atexit = False
        if ahead:
            try:
                self._stages.start()
            except BaseException:
                self.close()
                raise

    def __iter__(self) -> Iterator[R]:
        return self

    def __len__(self) -> int:
        """Number of items that are left to take."""
        return len(self._stages.numbers) - self._stages.taken

    def __next__(self) -> R:
        stages = self._stages
        if self._left_at_s is not None:
            stages.counters[-1].busy_s += time.perf_counter() - self._left_at_s
            self._left_at_s = None
        if stages.is_closed or stages.taken == len(stages.numbers):
            raise StopIteration
        try:
            result = stages.take(self._most_wait_s) if stages.ahead else stages.make()
            if isinstance(result, Failed):
                raise result.error
            received = self._receive(result)
        except BaseException:
            result = None
            self.close()
            raise
        self._left_at_s = time.perf_counter()
        return received

    def go_on(self) -> None:
        """Let work on a further item begin, in the place of the one that was taken last."""
        with self._stages.changed:
            self._stages.free()

    @property
    def counters(self) -> tuple[StageCounters, ...]:
        """The work of each stage so far, and of the caller, whose ``busy_s`` are the seconds between two results."""
        with self._stages.changed:
            return tuple(replace(counters) for counters in self._stages.counters)

    def close(self) -> None:
        """End all threads and drop what they have made. A second call does nothing.

        Raises:
            StalledError: a thread does not end in time.
        """
        self._stages.close(self._most_wait_s)

    def __enter__(self) -> Pipeline[R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

"""Pipeline: stages that work ahead of a caller, each on threads of its own, and hand over their results in order.

At most ``ahead`` items are on their way, so the memory is bounded, whichever stage is the slowest. A stage whose results are large may have
a smaller bound; the stages before it then work further ahead. The results do not depend on the numbers of threads or of items ahead.

The caller alone lets items in: each is a chain of futures, one for every stage, and threads take items in order. An exception of a stage
reaches the caller in the place of the item's result, after the results of earlier items.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-B (two-stage feature prefetch). We differ in that sampling is a stage as well.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, replace
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar

from sagann.errors import SagannError
from sagann.runtime.loading.serial_thread import work_serially

R = TypeVar("R")

_ENDING_S = 10.0
MOST_WAIT_S = 600.0
"Seconds after which an item that is not ready is an error, by default."


class StalledError(SagannError, RuntimeError):
    """An item that has not become ready in time, or a thread that does not end; names the stage and the item."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The size of a stage's result."""

    rows: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One kind of work on every item."""

    name: str
    "Name in errors and counters."
    work: Callable[[Any], Any]
    "Makes the stage's result of that of the stage before; the first stage gets the number of the item."
    threads: int = 1
    "Number of threads that work on different items."
    size_of: Callable[[Any], Size] = lambda result: Size()
    "Size of a result, for the counters."
    limit: Callable[[], int] | None = None
    "Most threads that work at the same time, asked before a thread waits for an item; None for all of them."
    ahead: int | None = None
    "Most items that have entered this stage and are on their way to the caller; None for the bound of all stages."


@dataclass(kw_only=True, slots=True)
class StageCounters:
    """The work of a stage so far. The caller is the last stage."""

    name: str
    items: int = 0
    rows: int = 0
    "Number of rows of their results."
    num_bytes: int = 0
    "Bytes of their results."
    most_bytes: int = 0
    busy_s: float = 0.0
    "Seconds of work, of all threads together."
    waited_s: float = 0.0
    "Seconds of waiting for an item, of all threads together."


class _Line:
    """A stage at work. It does not know the Pipeline, which is freed when its caller drops it."""

    def __init__(self, stage: Stage, num_items: int, name_of: Callable[[int], str]) -> None:
        self.stage, self.name_of = stage, name_of
        self.counters = StageCounters(name=stage.name)
        self.num_threads = min(stage.threads, num_items)
        # Daemons, unlike those of a ThreadPoolExecutor: one that is stalled must not keep the process from ending.
        self.threads: list[threading.Thread] = []
        self.tasks: SimpleQueue[tuple[int, Future[Any], Future[Any]] | None] = SimpleQueue()
        "Positions of items, what the stage before makes of them, and what the stage makes of that; None ends the threads."
        self.working: dict[int, float] = {}
        "Positions of items that are worked on, with the time of the clock when that began."
        self.num_begun = self.num_active = 0
        self.failed: tuple[int, BaseException] | None = None
        "The position of an item that has failed, and its error. Nobody takes later items."
        self.is_closed = False
        self.changed = threading.Condition()
        "Guards everything above."

    def submit(self, position: int, before: Future[Any]) -> Future[Any]:
        """Have a thread work on an item when the stage before has done so; items come in order."""
        result = Future[Any]()
        self.tasks.put((position, before, result))
        if len(self.threads) < self.num_threads:
            thread = threading.Thread(target=self._serve, name=f"sagann-{self.stage.name}", daemon=True)
            thread.start()
            self.threads.append(thread)
            _OPEN.add(self)
        return result

    def _serve(self) -> None:
        """The body of a thread."""
        since_s = time.perf_counter()
        while (task := self.tasks.get()) is not None:
            position, before, result = task
            try:
                result.set_result(self._run(position, before, since_s))
            except BaseException as error:  # noqa: BLE001 - whatever ends a stage is for the caller to see.
                result.set_exception(error)
            # No name holds an item while the next one is waited for.
            del task, before, result
            since_s = time.perf_counter()
        self.tasks.put(None)

    def _run(self, position: int, before: Future[Any], since_s: float) -> Any:
        """Work on an item in a thread that has waited since then."""
        try:
            self._begin(position)
            if self.failed is not None and position > self.failed[0]:
                # Other processes may still be at the item that has failed.
                raise self.failed[1]
            try:
                work_serially()
                given = before.result()
                with self.changed:
                    self.counters.waited_s += time.perf_counter() - since_s
                return self.work(position, given)
            except BaseException as error:
                self.failed = (position, error)
                raise
        finally:
            with self.changed:
                self.num_active -= 1
                self.changed.notify_all()

    def _begin(self, position: int) -> None:
        """Wait until as few threads are active as may be; items begin in order."""
        limit = self.stage.limit or (lambda: self.stage.threads)
        with self.changed:
            self.changed.wait_for(
                lambda: self.is_closed or (self.num_begun == position and self.num_active < limit())
            )
            self.num_begun += 1
            self.num_active += 1
            self.changed.notify_all()

    def work(self, position: int, given: Any) -> Any:
        since_s, size = time.perf_counter(), Size()
        with self.changed:
            if self.is_closed:
                raise CancelledError
            self.working[position] = since_s
        try:
            result = self.stage.work(given)
            size = self.stage.size_of(result)
        except BaseException as error:
            # At once: others take items while this thread waits below.
            self.failed = (position, error)
            error.add_note(f"Raised by stage '{self.stage.name}' of {self.name_of(position)}.")
            if isinstance(error, StopIteration):
                # It would end the caller's loop as if there were no more items.
                stopped = RuntimeError("a stage raised StopIteration")
                stopped.add_note(error.__notes__[-1])
                raise stopped from error
            raise
        finally:
            with self.changed:
                del self.working[position]
                counters = self.counters
                counters.items += 1
                counters.rows += size.rows
                counters.num_bytes += size.num_bytes
                counters.most_bytes = max(counters.most_bytes, size.num_bytes)
                counters.busy_s += time.perf_counter() - since_s
                self.changed.notify_all()
        return result

    def late(self, most_s: float) -> dict[int, float]:
        """What is still worked on after so many seconds, if anything is."""
        with self.changed:
            self.changed.wait_for(lambda: not self.working, most_s)
            return dict(self.working)

    def signal(self) -> None:
        """Have the threads end after the work that they are at."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        self.tasks.put(None)


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
        room: most items on their way now, at least 1, where that changes: asked whenever items may enter. None for ``ahead``.
        drains: whether items that have entered are finished where the pipeline is closed before, since other processes wait for them.
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
        drains: bool = False,
        holds: bool = False,
    ) -> None:
        self._numbers, self._ahead, self._receive, self._most_wait_s = numbers, ahead, receive, most_wait_s
        self._room, self._drains, self._holds = room or (lambda: ahead), drains, holds
        self._name_of: Callable[[int], str] = lambda position: f"{item} {numbers[position]}"
        self._lines = [_Line(stage, len(numbers), self._name_of) for stage in stages]
        self._entered: list[dict[int, Future[Any]]] = [{} for _ in stages]
        "For each stage, the results that its items will have, by position, until the next stage or the caller takes them."
        self._num_entered = [0] * len(stages)
        self._taken = self._freed = 0
        self._caller = StageCounters(name="caller")
        self._left_at_s: float | None = None
        self._is_closed = self._is_stalled = False
        # Freed on whatever thread, which may be one of the pipeline's: it must not wait.
        weakref.finalize(self, _signal, self._lines).atexit = False
        try:
            self._let_in()
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[R]:
        return self

    def __len__(self) -> int:
        return len(self._numbers) - self._taken

    def __next__(self) -> R:
        if self._left_at_s is not None:
            self._caller.busy_s += time.perf_counter() - self._left_at_s
            self._left_at_s = None
        if self._is_closed or not len(self):
            raise StopIteration
        try:
            self.go_on()
            received = self._receive(self._take() if self._ahead else self._make())
        except BaseException:
            self.close()
            raise
        self._caller.items += 1
        self._left_at_s = time.perf_counter()
        return received

    def go_on(self) -> None:
        """Let work on a further item begin, in the place of the one that was taken last."""
        if self._freed < self._taken:
            self._freed = self._taken
            self._let_in()

    @property
    def counters(self) -> tuple[StageCounters, ...]:
        """The work of each stage so far, and of the caller, whose ``busy_s`` are the seconds between two results."""
        return tuple(replace(counters) for counters in (*(line.counters for line in self._lines), self._caller))

    def close(self) -> None:
        """End all threads and drop what they have made. A second call does nothing.

        Raises:
            StalledError: a thread does not end in time.
        """
        if self._drains and not self._is_stalled:
            wait([result for results in self._entered for result in results.values()], self._most_wait_s)
        self._is_closed = True
        _signal(self._lines)
        deadline_s = time.monotonic() + (0.0 if self._is_stalled else self._most_wait_s)
        late = [
            (began_s, position, line.stage.name)
            for line in self._lines
            for position, began_s in line.late(max(0.0, deadline_s - time.monotonic())).items()
        ]
        for results in self._entered:
            results.clear()
        if late and not self._is_stalled:
            self._is_stalled = True
            _, position, stage = min(late)
            raise StalledError(
                f"a thread does not end: it has worked on {self._name_of(position)} for more than "
                f"{self._most_wait_s:.0f} s (in stage '{stage}')",
                hint="See whether the disk or the network that the data lie on answers.",
            )
        if not late:
            for line in self._lines:
                for thread in line.threads:
                    thread.join()

    def _let_in(self) -> None:
        """Let items enter the stages as far as there is room."""
        if not self._ahead or self._is_closed:
            return
        room, most = min(self._ahead, self._room()), len(self._numbers)
        for at, line in enumerate(self._lines):
            bound = room if line.stage.ahead is None else min(room, line.stage.ahead)
            ready = self._num_entered[at - 1] if at else most
            for position in range(self._num_entered[at], min(ready, self._freed + bound)):
                before = self._entered[at - 1].pop(position) if at else _done(self._numbers[position])
                self._entered[at][position] = line.submit(position, before)
                self._num_entered[at] = position + 1
                if position == most - 1:
                    line.tasks.put(None)

    def _take(self) -> Any:
        result, since_s = self._entered[-1].pop(self._taken), time.perf_counter()
        if not wait([result], self._most_wait_s).done:
            self._is_stalled = True
            at = [line.stage.name for line in self._lines if self._taken in line.working]
            where = f"stage '{at[0]}'" if at else "the threads that load ahead"
            raise StalledError(
                f"{self._name_of(self._taken)} is not ready: {time.perf_counter() - since_s:.0f} s waited, "
                f"{self._most_wait_s:.0f} s are the limit (in {where})",
                hint="See whether the disk or the network that the data lie on answers.",
            )
        self._caller.waited_s += time.perf_counter() - since_s
        self._taken += 1
        if not self._holds:
            self.go_on()
        return result.result()

    def _make(self) -> Any:
        """The next result, made on the calling thread."""
        result: Any = self._numbers[self._taken]
        for line in self._lines:
            result = line.work(self._taken, result)
        self._taken += 1
        return result

    def __enter__(self) -> Pipeline[R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _done(value: Any) -> Future[Any]:
    future = Future[Any]()
    future.set_result(value)
    return future


def _signal(lines: Sequence[_Line]) -> None:
    for line in lines:
        line.signal()


_OPEN: weakref.WeakSet[_Line] = weakref.WeakSet()


@atexit.register
def _close_open() -> None:
    """Threads that still run PyTorch while the interpreter ends may crash the process."""
    lines, deadline_s = list(_OPEN), time.monotonic() + _ENDING_S
    _signal(lines)
    for thread in (thread for line in lines for thread in line.threads):
        thread.join(max(0.0, deadline_s - time.monotonic()))

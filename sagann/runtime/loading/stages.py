"""Stages: kinds of work on numbered items, each on threads of its own, and what these threads share.

A thread waits for one of three causes: the stage before, room for another item, or the end. The caller waits for the next item alone,
and no longer than a stated time. :class:`sagann.runtime.loading.pipeline.Pipeline` is the caller's side.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sagann.errors import SagannError, in_one_line
from sagann.runtime.loading.serial_thread import work_serially

# Seconds after which a waiting thread looks whether what it waits for can still come.
_LOOK_S = 1.0


class StalledError(SagannError, RuntimeError):
    """An item that has not become ready in time, or whose thread has ended; names the stage and the item."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The size of a stage's result."""

    rows: int = 0
    "Number of rows."
    num_bytes: int = 0
    "Bytes of all arrays."


def _no_size(result: Any) -> Size:
    return Size()


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One kind of work on every item."""

    name: str
    "Name in errors and counters."
    work: Callable[[Any], Any]
    "Makes the stage's result of that of the stage before; the first stage gets the number of the item."
    threads: int = 1
    "Number of threads that work on different items."
    size_of: Callable[[Any], Size] = _no_size
    "Size of a result, for the counters."
    limit: Callable[[], int] | None = None
    "Most threads that work at the same time, asked before each item; None for all of them."
    in_order: bool = False
    "Whether items enter in the order of their numbers, however the stage before finishes them."
    ahead: int | None = None
    "Most items that have entered this stage and are on their way to the caller; None for the bound of all stages."


@dataclass(kw_only=True, slots=True)
class StageCounters:
    """The work of a stage so far. The caller is the last stage."""

    name: str
    "Name of the stage."
    items: int = 0
    "Number of items that it has finished."
    rows: int = 0
    "Number of rows of their results."
    num_bytes: int = 0
    "Bytes of their results."
    most_bytes: int = 0
    "Bytes of the largest result."
    busy_s: float = 0.0
    "Seconds of work, of all threads together."
    waited_s: float = 0.0
    "Seconds of waiting for an item or for room, of all threads together."


@dataclass(kw_only=True, slots=True)
class Failed:
    """What a stage raised, in the place of a result."""

    error: BaseException


@dataclass(kw_only=True, eq=False)
class Stages:
    """What the threads of all stages share. They do not know the Pipeline, which is freed when its caller drops it."""

    numbers: range
    stages: Sequence[Stage]
    ahead: int
    item: str
    room: Callable[[], int]
    "Most items on their way now; asked before each item enters, and at most ``ahead`` counts."
    holds: bool = False
    "Whether an item that was taken keeps its place until the caller frees it or asks for the next one."
    changed: threading.Condition = field(default_factory=threading.Condition)
    "Guards everything below."
    started: int = 0
    "Number of items that have entered the first stage."
    taken: int = 0
    "Number of items that the caller has taken."
    freed: int = 0
    "Number of these whose places further items may have."
    done: list[dict[int, Any]] = field(init=False)
    "For each stage, its results that nobody has taken yet, by position of the item."
    working: dict[tuple[int, int], float] = field(default_factory=dict)
    "Position and stage of items that are worked on, with the time of the clock when that began."
    entered: list[int] = field(init=False)
    "For each stage but the first, the number of items that have entered it."
    counters: list[StageCounters] = field(init=False)
    threads: list[threading.Thread] = field(default_factory=list)
    is_closed: bool = False
    is_stalled: bool = False
    "Whether an item has not become ready in time: no thread is waited for any more."
    broken: BaseException | None = None
    "What has ended a thread outside of the work of its stage."

    def __post_init__(self) -> None:
        self.done = [{} for _ in self.stages]
        self.entered = [0] * len(self.stages)
        self.counters = [StageCounters(name=stage.name) for stage in self.stages] + [StageCounters(name="caller")]
        self.end = len(self.numbers)
        "Number of items that may enter: an item that has failed is the last one."

    def named(self, position: int) -> str:
        """An item's name, for people."""
        return f"{self.item} {self.numbers[position]}"

    def start(self) -> None:
        """Start the threads of all stages."""
        _OPEN.add(self)
        for number, stage in enumerate(self.stages):
            for _ in range(min(stage.threads, len(self.numbers))):
                thread = threading.Thread(target=self.run, args=(number,), name=f"sagann-{stage.name}", daemon=True)
                thread.start()
                self.threads.append(thread)

    def next_item(self, stage: int) -> tuple[int, Any] | None:
        """Position and input of the next item for a stage, the first one in order; None if there is none yet."""
        kind = self.stages[stage]
        if kind.limit is not None and sum(at == stage for _, at in self.working) >= kind.limit():
            return None
        if stage == 0:
            if self.started == self.end or self.started >= self.freed + min(self.ahead, self.room()):
                return None
            self.started += 1
            return self.started - 1, self.numbers[self.started - 1]
        before = self.done[stage - 1]
        if not before:
            return None
        position = min(before)
        if kind.ahead is not None and position >= self.freed + kind.ahead:
            return None
        if kind.in_order and position != self.entered[stage]:
            return None
        self.entered[stage] += 1
        return position, before.pop(position)

    def has_no_more(self, stage: int) -> bool:
        """Whether no item will come to a stage any more."""
        if self.is_closed or not threading.main_thread().is_alive():
            return True
        on_their_way = [*self.working, *((position, s) for s in range(stage) for position in self.done[s])]
        return self.started == self.end and not any(before < stage for _, before in on_their_way)

    def work(self, stage: int, position: int, given: Any) -> Any:
        """Work on an item; the result, or what was raised."""
        kind, counters = self.stages[stage], self.counters[stage]
        since_s, size = time.perf_counter(), Size()
        try:
            result = kind.work(given)
            size = kind.size_of(result)
        except BaseException as error:  # noqa: BLE001 - whatever ends a stage is for the caller to see.
            result = Failed(error=error)
            if isinstance(error, StopIteration):
                # It would end the caller's loop as if there were no more items.
                result.error = RuntimeError("a stage raised StopIteration")
                result.error.__cause__ = error
            result.error.add_note(f"Raised by stage '{kind.name}' of {self.named(position)}.")
        busy_s = time.perf_counter() - since_s
        with self.changed:
            counters.items += 1
            counters.rows += size.rows
            counters.num_bytes += size.num_bytes
            counters.most_bytes = max(counters.most_bytes, size.num_bytes)
            counters.busy_s += busy_s
        return result

    def run(self, stage: int) -> None:
        """The body of a stage's thread."""
        try:
            work_serially()
            while (item := self.await_item(stage)) is not None:
                position, given = item
                result = self.work(stage, position, given)
                del item, given
                self.hand_over(stage, position, result)
                del result
        except BaseException as error:  # noqa: BLE001 - the caller must not wait for this thread.
            with self.changed:
                self.broken = error
                self.changed.notify_all()

    def await_item(self, stage: int) -> tuple[int, Any] | None:
        """Position and input of the next item for a stage; waits for it. None if no item will come."""
        with self.changed:
            since_s = time.perf_counter()
            while (item := self.next_item(stage)) is None and not self.has_no_more(stage):
                self.changed.wait(_LOOK_S)
            if item is None or self.is_closed:
                return None
            now_s = time.perf_counter()
            self.counters[stage].waited_s += now_s - since_s
            self.working[item[0], stage] = now_s
            return item

    def hand_over(self, stage: int, position: int, result: Any) -> None:
        """Give a result to the next stage. A failure goes past the other stages, and no more items enter."""
        with self.changed:
            del self.working[position, stage]
            if isinstance(result, Failed):
                stage, self.end = -1, self.started
            self.done[stage][position] = result
            self.changed.notify_all()

    def take(self, most_wait_s: float) -> Any:
        """The next result, or what was raised instead; waits for it."""
        results, since_s = self.done[-1], time.perf_counter()
        with self.changed:
            self.free()
            while self.taken not in results:
                self.require_coming(time.perf_counter() - since_s, most_wait_s)
                self.changed.wait(min(_LOOK_S, most_wait_s))
            self.counters[-1].waited_s += time.perf_counter() - since_s
            self.counters[-1].items += 1
            self.taken += 1
            if not self.holds:
                self.free()
            return results.pop(self.taken - 1)

    def make(self) -> Any:
        """The next result, made on the calling thread; or what was raised instead."""
        result: Any = self.numbers[self.taken]
        for stage in range(len(self.stages)):
            result = self.work(stage, self.taken, result)
            if isinstance(result, Failed):
                break
        self.taken += 1
        self.counters[-1].items += 1
        return result

    def free(self) -> None:
        """Let further items have the places of those that were taken."""
        if self.freed < self.taken:
            self.freed = self.taken
            self.changed.notify_all()

    def require_coming(self, waited_s: float, most_wait_s: float) -> None:
        """Refuse to wait for an item that has taken too long, or whose thread has ended."""
        if self.broken is None and waited_s <= most_wait_s:
            return
        self.is_stalled = True
        at = [self.stages[stage].name for position, stage in self.working if position == self.taken]
        where = f"stage '{at[0]}'" if at else "the threads that load ahead"
        if self.broken is not None:
            raise StalledError(
                f"{self.named(self.taken)} will not become ready: a thread has ended by "
                f"{in_one_line(self.broken)} (in {where})",
                hint="Load on the calling thread, with ahead=0, to see where.",
            ) from self.broken
        raise StalledError(
            f"{self.named(self.taken)} is not ready: {waited_s:.0f} s waited, {most_wait_s:.0f} s are the "
            f"limit (in {where})",
            hint="See whether the disk or the network that the data lie on answers.",
        )

    def signal(self) -> None:
        """Have all threads end after the work that they are at."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def close(self, most_wait_s: float) -> None:
        """Have all threads end, wait for them, and drop all results."""
        self.signal()
        deadline_s = time.monotonic() + (0.0 if self.is_stalled else most_wait_s)
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline_s - time.monotonic()))
        with self.changed:
            for results in self.done:
                results.clear()
            if self.working and not self.is_stalled:
                self.is_stalled = True
                (position, stage), _ = min(self.working.items(), key=lambda item: item[1])
                raise StalledError(
                    f"a thread does not end: it has worked on {self.named(position)} for more than "
                    f"{most_wait_s:.0f} s (in stage '{self.stages[stage].name}')",
                    hint="See whether the disk or the network that the data lie on answers.",
                )


_OPEN: weakref.WeakSet[Stages] = weakref.WeakSet()


@atexit.register
def _close_open() -> None:
    """Threads that still run PyTorch while the interpreter ends may crash the process."""
    for stages in list(_OPEN):
        with suppress(StalledError):
            stages.close(most_wait_s=10.0)

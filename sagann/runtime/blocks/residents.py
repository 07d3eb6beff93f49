"""Residents: the blocks in the memory that computes, and the copies of them into it and out of it, while a plan runs.

What waits for what is the plan's affair. Within the process's memory nothing is copied: a block that leaves lies where it lay, beyond the
budget. From and to files, one thread loads and one thread stores, while steps run. Blocks in the page cache are read at once instead: a thread
that copies would take a core from a step, whose threads wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from sagann.errors import InputError
from sagann.graph.topology import for_training_as_well
from sagann.kernels.edge.state import GatherState
from sagann.kernels.memory import POOL
from sagann.plan.epoch import Planned
from sagann.plan.intervals import CutOwn, PartIntervals, cut_graph
from sagann.plan.steps import DEVICE, UNLIMITED, Beside, Block, Move, Plan, Step
from sagann.runtime.allocator import HeapGuard
from sagann.runtime.blocks.host import Host
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.recorder import Recorder, recorded

BytesOf = Callable[[Block], int]
"Gives the bytes of a block."


def nothing() -> None:
    """Wait for nothing."""


class Copy(NamedTuple):
    """A copy that may be under way."""

    result: Callable[[], Any]
    "Makes later steps of its device run after the copy. Gives the content of a block that was loaded."
    done: Callable[[], bool] = lambda: False
    "Whether a store by a thread has ended."
    owner: str = DEVICE
    "Device that copies from or to its memory."
    mark: Callable[[], Any] = nothing
    "Gives what the lanes of other devices wait for."


class Threads:
    """A thread that loads and one that stores, which start with their first work. Whatever they run must not hold the residents."""

    def __init__(self) -> None:
        self.loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-load")
        self._storer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-store")
        self._error: BaseException | None = None

    def store(
        self,
        put: Callable[[], None],
        *,
        arrive: Callable[[], None] = nothing,
        release: Callable[[], None] = nothing,
    ) -> Future[None]:
        """Put a block once it has arrived, and release its memory then, or when that fails.

        After a store that has failed, all fail with the same error.
        """
        return self._storer.submit(self._store_in_turn, put, arrive, release)

    def _store_in_turn(
        self, put: Callable[[], None], arrive: Callable[[], None], release: Callable[[], None]
    ) -> None:
        try:
            arrive()
            if self._error is not None:
                raise self._error
            put()
        except BaseException as error:
            self._error = error
            raise
        finally:
            release()

    def end(self) -> None:
        """Wait for the copies under way, and start no others."""
        self._error = self._error or CancelledError()
        self.loader.shutdown(wait=True, cancel_futures=True)
        # No store is cancelled, because each one releases its memory.
        self._storer.shutdown(wait=True)


class Residents:
    """The contents of blocks by name. Steps and copies wait for what the plan says.

    The budget is of all blocks and of the temporary memory of a step.
    """

    def __init__(
        self, plan: Plan, sources: Sources, bytes_of: BytesOf, timeline: Recorder | None, beside: Beside
    ) -> None:
        self._sources, self._host, self._bytes_of = sources, sources.host, bytes_of
        self.timeline = timeline
        "Recorder of the epoch's steps and copies."
        self._threads = Threads() if beside.counts_process else None
        self._waits = plan.waits
        # Where blocks that are not in use lie in the process's memory too, the budget does not hold for the process.
        holds = plan.budget_bytes < UNLIMITED and beside.counts_process
        self.pool_bytes = plan.budget_bytes if holds else UNLIMITED
        self._staying, self._stayed = plan.staying, sources.stayed
        there_bytes = sum(load.num_bytes for load in plan.staying if load.block in self._stayed)
        self._heap = HeapGuard(plan.budget_bytes - there_bytes) if holds else None
        self._held_bytes = plan.budget_bytes - plan.room_bytes
        self._blocks: dict[Block, Any] = {}
        # Copies by their number in the plan, and the blocks that come, until something waits for them.
        self._under_way: dict[int, tuple[Copy, Block | None]] = {}

    def __getitem__(self, block: Block) -> Any:
        return self._blocks[block]

    def __setitem__(self, block: Block, value: Any) -> None:
        self._blocks[block] = value

    def get(self, block: Block) -> Any:
        """A block's content; None before a step has made it."""
        return self._blocks.get(block)

    def discard(self, block: Block) -> None:
        """Forget a block."""
        self._blocks.pop(block, None)

    def stay(self) -> None:
        """Load the blocks that stay from epoch to epoch and are not there yet."""
        if missing := [load.block for load in self._staying if load.block not in self._stayed]:
            # Whatever call comes first.
            with for_training_as_well():
                self._stayed.update({block: self.load(block, ()).result() for block in missing})

    def turn(self, number: int, operation: Step | Move) -> None:
        """Go on with an operation, whose number in the plan is given, on its device."""

    def turn_back(self) -> None:
        """Go on with work of the caller, on the first device."""

    def bring(self, parts: Iterable[tuple[str, Mapping[str, Tensor]]], owner: str) -> list[Mapping[str, Tensor]]:
        """Small tensors of some devices, in the memory of one, which has no work yet since it turned. The others must turn before they work again."""
        return [tensors for _, tensors in parts]

    def give(self, into: Tensor, rows: Tensor, owner: str) -> None:
        """Copy rows of a device's block into a tensor on the first device, before the block changes."""
        into.copy_(rows)

    def begin(self, number: int, step: Step) -> None:
        """Wait for what a step waits for, whose number in the plan is given, and free memory that is kept for later use."""
        self._await(number, step.owner)
        for block in step.writes:
            if block not in self._blocks:
                self._blocks[block] = None
                self._held_bytes += self._bytes_of(block)
        # Free blocks of the pool are memory too.
        POOL.shrink(max(0, self.pool_bytes - self._held_bytes - step.temporary_bytes))
        if self._heap is not None:
            self._heap.check()

    def running(self, step: Step) -> AbstractContextManager[None]:
        """Inside the ``with`` block, a step runs where its blocks lie, and is recorded."""
        return recorded(self.timeline, "compute", step.label)

    def move(self, number: int, move: Move) -> None:
        """Start a copy, or drop a block; the number is that in the plan."""
        block = move.block
        match move.kind:
            case "load" if block in self._stayed:
                self._blocks[block] = self._stayed[block]
            case "load":
                self._blocks[block] = None
                self._held_bytes += move.num_bytes
                after = self._before(number, move)
                self._begin(number, self.load(block, after) if not move.peer else self.pass_on(move, after), block)
            case "store":
                content = tensors_of(self._blocks[block])
                self._begin(number, self.store(block, content, self._before(number, move)), None)
            case "drop":
                self._await(number, move.owner)
                self.discard(block)
                self._held_bytes -= move.num_bytes
            case _:
                raise _not_here(move)

    def load(self, block: Block, after: Sequence[Copy]) -> Copy:
        """Start to load a block, after some stores."""
        load = partial(_loaded, self._sources, block, self.timeline, self._bytes_of(block), after)
        if self._threads is None or (all(store.done() for store in after) and self._sources.is_at_hand(block)):
            content = load()
            return Copy(lambda: content)
        return Copy(self._threads.loader.submit(load).result)

    def store(self, block: Block, tensors: Mapping[str, Tensor], after: Sequence[Copy] = ()) -> Copy:
        """Start to copy a block out, after loads of what it replaces. Its tensors must not change before the copy has ended."""
        put = partial(_put, self._host, block, tensors, self.timeline, self._bytes_of(block))
        if self._threads is None:
            put()
            return Copy(nothing)
        future = self._threads.store(put)
        return Copy(future.result, future.done)

    def pass_on(self, move: Move, after: Sequence[Copy]) -> Copy:
        """Start to load a block from the memory of another device."""
        raise _not_here(move)

    def await_store(self, block: Block) -> None:
        """Wait until a block lies on its host, for others to read it there. The plan has waited for stores by threads already."""

    def close(self) -> None:
        """Wait for the copies under way, start no others, and forget all blocks, stored ones too."""
        if self._threads is not None:
            self._threads.end()
        self._host.close()
        self._under_way.clear()
        self._blocks.clear()

    def _waits_of(self, number: int) -> tuple[int, ...]:
        return self._waits[number] if self._waits else ()

    def _begin(self, number: int, copy: Copy, loaded: Block | None) -> None:
        self._under_way[number] = copy, loaded
        if not self._waits:
            # Nothing is copied beside steps.
            self._end(number)

    def _await(self, number: int, owner: str) -> None:
        """Make later steps of a device run after what an operation of it waits for."""
        for each in self._waits_of(number):
            self._end(each)

    def _before(self, number: int, move: Move) -> Sequence[Copy]:
        """The copies that a copy waits for and that may be under way."""
        return [self._under_way[each][0] for each in self._waits_of(number) if each in self._under_way]

    def _end(self, number: int) -> None:
        """Make later steps run after a copy."""
        copy, loaded = self._under_way.pop(number, (None, None))
        if copy is not None:
            content = copy.result()
            if loaded is not None:
                self._blocks[loaded] = content


class ExchangeSteps:
    """The steps of one epoch in which workers exchange blocks, as methods by their kinds; in one process there are none."""

    def close(self) -> None:
        """End exchanges that nobody has waited for, because this worker has failed."""


class Exchange:
    """What a plan over the intervals of a worker's part needs of other workers; here of a whole graph, where nothing travels."""

    first_vertex = 0
    "Id in the graph of the first own vertex."
    first_value = 0
    "Id of the first non-zero in the features of own vertices, where these are sparse; else 0."

    def cut(self, count: int, cut_own: CutOwn) -> PartIntervals:
        """Cut all sources of the part into about ``count`` intervals (:data:`sagann.plan.intervals.CutPart`)."""
        return cut_graph(count, cut_own)

    def add_up(self, tensor: Tensor, doing: str) -> Tensor:
        """The sum of one tensor [n] of each worker: the same bits at every worker. All workers call this at the same time."""
        return tensor

    def steps(self, planned: Planned, host: Host, resident: Residents) -> ExchangeSteps:
        """The steps of an epoch that exchange blocks. All workers begin their exchanges in the same order."""
        return ExchangeSteps()


def _not_here(move: Move) -> InputError:
    return InputError(
        f"a plan moves a block in a way that is only simulated: {move.label} of {move.owner} (in StreamedModel)",
        hint="Run a plan that plan_epoch makes for these devices.",
    )


def tensors_of(content: Tensor | GatherState | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors of a block's content."""
    if isinstance(content, GatherState):
        return content.tensors()
    return {"": content} if isinstance(content, Tensor) else content


def _loaded(
    sources: Sources, block: Block, timeline: Recorder | None, num_bytes: int, after: Sequence[Copy]
) -> Any:
    for copy in after:
        copy.result()
    with recorded(timeline, "load", block.label, num_bytes):
        return sources.load(block).content()


def _put(
    host: Host, block: Block, tensors: Mapping[str, Tensor], timeline: Recorder | None, num_bytes: int
) -> None:
    with recorded(timeline, "store", block.label, num_bytes):
        host.put(block, tensors)

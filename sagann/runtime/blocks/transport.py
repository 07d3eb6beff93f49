"""Transport: copies of blocks into and out of the memory that computes, while steps run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from sagann.plan.steps import Block
from sagann.runtime.blocks.host import Host
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.recorder import Recorder, recorded

BytesOf = Callable[[Block], int]
"Gives the bytes of a block."


def nothing() -> None:
    """Wait for nothing."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A copy that a function waits for."""

    wait: Callable[[], Any]

    def result(self) -> Any:
        """Make later steps run after the copy. Gives the content of a block that was loaded."""
        return self.wait()


Copy = Awaited | Future[Any]
"A copy that may be under way, by its ``result``."


class Threads:
    """A thread that loads and one that stores, which start with their first work. Whatever they run must not hold the transport."""

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


class Transport:
    """Copies the blocks of one epoch, in the order of the calls. What waits for what is the plan's affair.

    Within the process's memory copies are made at once: no step runs at the same time. Memory has no engine that copies beside
    the processor. A thread that copies would take a core from a step, whose threads wait for each other. From and to files, one
    thread loads and one thread stores, while steps run. Blocks in the page cache are read at once instead.
    """

    def __init__(
        self,
        sources: Sources,
        host: Host,
        bytes_of: BytesOf,
        timeline: Recorder | None,
        *,
        copies_beside: bool,
    ) -> None:
        self._sources = sources
        self._host = host
        self._bytes_of = bytes_of
        self.timeline = timeline
        "Recorder of the epoch's steps and copies."
        self._threads = Threads() if copies_beside else None

    def load(self, block: Block, after: Sequence[Copy]) -> Copy:
        """Start to load a block, after some stores."""
        load = partial(_loaded, self._sources, block, self.timeline, self._bytes_of(block))
        if self._threads is None or self._is_at_hand(block, after):
            content = load(after)
            return Awaited(lambda: content)
        return self._threads.loader.submit(load, after)

    def _is_at_hand(self, block: Block, after: Sequence[Copy]) -> bool:
        return all(isinstance(store, Future) and store.done() for store in after) and self._sources.is_at_hand(
            block
        )

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> Copy:
        """Start to copy a block out. Its tensors must not change before the copy has ended."""
        put = partial(_put, self._host, block, tensors, self.timeline, self._bytes_of(block))
        if self._threads is None:
            put()
            return Awaited(nothing)
        return self._threads.store(put)

    def await_store(self, block: Block) -> None:
        """Wait until a block lies on its host, for others to read it there. The plan has waited for stores by threads already."""

    def close(self) -> None:
        """Wait for the copies under way, start no others, and forget the stored blocks."""
        if self._threads is not None:
            self._threads.end()
        self._host.close()


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

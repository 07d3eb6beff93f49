"""Transport: how blocks come into the memory that computes and get out of it, while steps run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from sagann.plan.pending_stores import PendingStores
from sagann.plan.steps import Block
from sagann.plan.timeline import Lane
from sagann.runtime.blocks.host import Host
from sagann.runtime.recorder import Recorder, recorded

BytesOf = Callable[[Block], int]
"A block's size."


class Source(Protocol):
    """Where blocks are loaded from."""

    def load(self, block: Block) -> Any:
        """Read a block from where it lies."""
        ...

    def is_at_hand(self, block: Block) -> bool:
        """Whether a block lies in a file that can be read without waiting for a disk, as far as the system tells."""
        ...

    def known_as(self, block: Block) -> Block:
        """A chunk's block, by a number that is the same in every program and never of other edges."""
        ...


class Pending(Protocol):
    """A copy under way."""

    def result(self) -> Any:
        """Have what is computed from now on come after the copy; gives a loaded block's content."""
        ...


class Transport(Protocol):
    """Copies blocks in the order in which it is asked to."""

    counts_process: bool
    "Whether what lies elsewhere is not in this process's memory, so that the budget holds for the process."

    def load(self, block: Block) -> Pending:
        """Begin to load a block."""
        ...

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Begin to copy a block out; until that is waited for, its tensors stay as they are."""
        ...

    def await_store(self, block: Block) -> None:
        """Have what is computed from now on come after a block's store, if there is one under way."""
        ...

    def drop(self, block: Block) -> None:
        """Have others use a block's memory, but not before it is stored, if a store is under way."""
        ...

    def make_room(self, room_bytes: int) -> None:
        """Wait for blocks that were dropped and are still being stored, where they take more than so many bytes."""
        ...

    def close(self) -> None:
        """Wait for the copies under way, and begin no others."""
        ...


class _Copies:
    """What copies of an epoch come from, go to, and are recorded by.

    Args:
        source: gives a block in memory of its own.
        host: takes what is stored.
        bytes_of: a block's size.
        timeline: where copies are recorded.
    """

    def __init__(self, source: Source, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> None:
        self._source = source
        self._host = host
        self._bytes_of = bytes_of
        self._timeline = timeline

    def _recorded(self, lane: Lane, copy: Callable[..., Any], block: Block, *rest: Any) -> Any:
        with recorded(self._timeline, lane, block.label, self._bytes_of(block)):
            return copy(block, *rest)


class DirectTransport(_Copies):
    """Copies within the process's memory as soon as it is asked to, before anything else is computed.

    Memory has no engine that copies beside the processor. A thread that did would take a core from those that compute, who
    wait for one another.
    """

    counts_process = False

    def load(self, block: Block) -> Pending:
        """Load a block."""
        return _Loaded(self._recorded("load", self._source.load, block))

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block out."""
        self._recorded("store", self._host.put, block, tensors)

    def await_store(self, block: Block) -> None:
        """Stores are over when they are asked for."""

    def drop(self, block: Block) -> None:
        """Nobody uses a dropped block."""

    def make_room(self, room_bytes: int) -> None:
        """What was dropped takes no room."""

    def close(self) -> None:
        """Forget what was stored."""
        self._host.close()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A copy that is over."""

    content: Any

    def result(self) -> Any:
        return self.content


class ThreadTransport(_Copies):
    """Copies from and to files: loads and stores have a thread each, which waits for the disk while others compute.

    What the system's cache has of a file needs no disk: it is read before anything else is computed, as within memory.

    Who drops a block does not wait for its store: :mod:`sagann.plan.pending_stores` says who does.
    """

    counts_process = True

    def __init__(self, source: Source, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> None:
        super().__init__(source, host, bytes_of, timeline)
        self._stores: dict[Block, Future[None]] = {}
        self._pending = PendingStores[Future[None]]()
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-load")
        self._storer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-store")

    def load(self, block: Block) -> Pending:
        """Begin to load a block."""
        self._pending.settle(_has_ended)
        stores = self._pending.load(self._bytes_of(block))
        # Rows are picked from what lies on the host.
        if block.needed_by is not None and (of_whole := self._stores.get(block.whole)) is not None:
            stores.append(of_whole)
        if all(map(_has_ended, stores)) and self._source.is_at_hand(block):
            return _Loaded(self._recorded("load", self._source.load, block))
        return self._loader.submit(self._load_after, stores, block)

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Begin to copy a block out."""
        self._stores[block] = self._storer.submit(self._recorded, "store", self._host.put, block, tensors)

    def await_store(self, block: Block) -> None:
        """Wait for a block's store, if there is one under way."""
        if (store := self._stores.pop(block, None)) is not None:
            store.result()

    def drop(self, block: Block) -> None:
        """Have others use a block's memory when it is stored."""
        if (store := self._stores.pop(block, None)) is not None:
            self._pending.drop(self._bytes_of(block), store)

    def make_room(self, room_bytes: int) -> None:
        """Wait for blocks that were dropped and are still being stored, where they take more than so many bytes."""
        self._pending.settle(_has_ended)
        if self._pending.excess_bytes > room_bytes:
            for store in self._pending.stores:
                store.result()

    def close(self) -> None:
        """Wait for the copies under way, and begin no others."""
        for copies in (self._loader, self._storer):
            copies.shutdown(wait=True, cancel_futures=True)
        self._stores.clear()
        self._host.close()

    def _load_after(self, stores: Sequence[Future[None]], block: Block) -> Any:
        for store in stores:
            store.result()
        return self._recorded("load", self._source.load, block)


def _has_ended(store: Future[None]) -> bool:
    """Whether a store has ended; what went wrong with it is raised."""
    if not store.done():
        return False
    store.result()
    return True

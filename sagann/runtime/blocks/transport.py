"""Transports: copies of blocks into and out of the memory that computes, while steps run."""

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
"Gives the bytes of a block."


class Source(Protocol):
    """The place that blocks are loaded from."""

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
        """Make later steps run after the copy; gives the content of a loaded block."""
        ...


class Transport(Protocol):
    """Copies blocks, in the order of the calls."""

    counts_process: bool
    "Whether the budget holds for the whole process, because blocks that are not in use lie outside of its memory."

    def load(self, block: Block) -> Pending:
        """Start to load a block."""
        ...

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Start to copy a block out. Its tensors must not change before :meth:`await_store`."""
        ...

    def await_store(self, block: Block) -> None:
        """Make later steps run after a block's store, if one is under way."""
        ...

    def drop(self, block: Block) -> None:
        """Free a block's memory; if a store is under way, after the store."""
        ...

    def make_room(self, room_bytes: int) -> None:
        """Wait until dropped blocks whose stores are under way take no more than ``room_bytes``."""
        ...

    def close(self) -> None:
        """Wait for the copies under way, and start no others."""
        ...


class _Copies:
    """The copies of one epoch.

    Args:
        source: reads a block into memory of its own.
        host: keeps blocks that are stored.
        bytes_of: gives the bytes of a block.
        timeline: records copies; None for no record.
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
    """Copies within the process's memory, at once: no step runs at the same time.

    Memory has no engine that copies beside the processor. A thread that copies would take a core from a step, whose threads
    wait for each other.
    """

    counts_process = False

    def load(self, block: Block) -> Pending:
        """Load a block."""
        return _Loaded(self._recorded("load", self._source.load, block))

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block out."""
        self._recorded("store", self._host.put, block, tensors)

    def await_store(self, block: Block) -> None:
        """Nothing: a store has ended when :meth:`store` returns."""

    def drop(self, block: Block) -> None:
        """Nothing: the memory is free as soon as nobody holds the block."""

    def make_room(self, room_bytes: int) -> None:
        """Nothing: dropped blocks take no room."""

    def close(self) -> None:
        """Forget the stored blocks."""
        self._host.close()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A copy that has ended."""

    content: Any

    def result(self) -> Any:
        return self.content


class ThreadTransport(_Copies):
    """Copies from and to files: one thread loads and one thread stores, while steps run.

    Blocks in the page cache are read at once instead, as within memory. A drop does not wait for the block's store:
    :mod:`sagann.plan.pending_stores` says which step does.
    """

    counts_process = True

    def __init__(self, source: Source, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> None:
        super().__init__(source, host, bytes_of, timeline)
        self._stores: dict[Block, Future[None]] = {}
        self._pending = PendingStores[Future[None]]()
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-load")
        self._storer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-store")

    def load(self, block: Block) -> Pending:
        """Start to load a block."""
        self._pending.settle(_has_ended)
        stores = self._pending.load(self._bytes_of(block))
        # Rows are picked from the block on the host.
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
        """Free a block's memory when it is stored."""
        if (store := self._stores.pop(block, None)) is not None:
            self._pending.drop(self._bytes_of(block), store)

    def make_room(self, room_bytes: int) -> None:
        """Wait until dropped blocks whose stores are under way take no more than ``room_bytes``."""
        self._pending.settle(_has_ended)
        if self._pending.excess_bytes > room_bytes:
            for store in self._pending.stores:
                store.result()

    def close(self) -> None:
        """Wait for the copies under way, and start no others."""
        for copies in (self._loader, self._storer):
            copies.shutdown(wait=True, cancel_futures=True)
        self._stores.clear()
        self._host.close()

    def _load_after(self, stores: Sequence[Future[None]], block: Block) -> Any:
        for store in stores:
            store.result()
        return self._recorded("load", self._source.load, block)


def _has_ended(store: Future[None]) -> bool:
    """Whether a store has ended; raises the error of a store that failed."""
    if not store.done():
        return False
    store.result()
    return True

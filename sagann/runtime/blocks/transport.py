"""Transports: copies of blocks into and out of the memory that computes, while steps run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from sagann.plan.pending_stores import PendingStores
from sagann.plan.steps import Block
from sagann.plan.timeline import Lane
from sagann.runtime.blocks.host import Host
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.recorder import Recorder, recorded

BytesOf = Callable[[Block], int]
"Gives the bytes of a block."
Load = Callable[[], Any]
"Makes later steps run after a load, and gives the block's content."


class Transport:
    """Copies the blocks of one epoch, in the order of the calls.

    This one copies within the process's memory, at once: no step runs at the same time. Memory has no engine that copies beside
    the processor. A thread that copies would take a core from a step, whose threads wait for each other.
    """

    counts_process = False
    "Whether the budget holds for the whole process, because blocks that are not in use lie outside of its memory."

    def __init__(self, sources: Sources, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> None:
        self._sources = sources
        self._host = host
        self._bytes_of = bytes_of
        self._timeline = timeline

    def load(self, block: Block) -> Load:
        """Start to load a block."""
        content = self._recorded("load", self._sources.load, block)
        return lambda: content

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Start to copy a block out. Its tensors must not change before :meth:`await_store`."""
        self._recorded("store", self._host.put, block, tensors)

    def await_store(self, block: Block) -> None:
        """Make later steps run after a block's store, if one is under way."""

    def stored(self) -> Callable[[], None]:
        """A function that waits for the stores so far, for another thread."""
        return lambda: None

    def drop(self, block: Block) -> None:
        """Free a block's memory; if a store is under way, after the store."""

    def make_room(self, room_bytes: int) -> None:
        """Wait until dropped blocks whose stores are under way take no more than ``room_bytes``."""

    def close(self) -> None:
        """Wait for the copies under way, start no others, and forget the stored blocks."""
        self._host.close()

    def _recorded(self, lane: Lane, copy: Callable[..., Any], block: Block, *rest: Any) -> Any:
        with recorded(self._timeline, lane, block.label, self._bytes_of(block)):
            return copy(block, *rest)


class ThreadTransport(Transport):
    """Copies from and to files: one thread loads and one thread stores, while steps run.

    Blocks in the page cache are read at once instead, as within memory. A drop does not wait for the block's store:
    :mod:`sagann.plan.pending_stores` says which step does.
    """

    counts_process = True

    def __init__(self, sources: Sources, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> None:
        super().__init__(sources, host, bytes_of, timeline)
        self._stores: dict[Block, Future[None]] = {}
        self._last_store: Future[None] | None = None
        self._store_error: BaseException | None = None
        self._pending = PendingStores[Future[None]]()
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-load")
        self._storer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-store")

    def load(self, block: Block) -> Load:
        self._pending.settle(_has_ended)
        stores = self._pending.load(self._bytes_of(block))
        # Rows are picked from the block on the host.
        if block.needed_by is not None and (of_whole := self._stores.get(block.whole)) is not None:
            stores.append(of_whole)
        if all(map(_has_ended, stores)) and self._sources.is_at_hand(block):
            return super().load(block)
        return self._loader.submit(self._load_after, stores, block).result

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        self._stores[block] = self._last_store = self._storer.submit(self._store_in_turn, block, tensors)

    def _store_in_turn(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Store a block, unless a store before has failed: then this one fails with the same error."""
        if self._store_error is not None:
            raise self._store_error
        try:
            super().store(block, tensors)
        except BaseException as error:
            self._store_error = error
            raise

    def await_store(self, block: Block) -> None:
        if (store := self._stores.pop(block, None)) is not None:
            store.result()

    def stored(self) -> Callable[[], None]:
        # One thread stores, in the order of the calls.
        return super().stored() if self._last_store is None else self._last_store.result

    def drop(self, block: Block) -> None:
        if (store := self._stores.pop(block, None)) is not None:
            self._pending.drop(self._bytes_of(block), store)

    def make_room(self, room_bytes: int) -> None:
        self._pending.settle(_has_ended)
        if self._pending.excess_bytes > room_bytes:
            for store in self._pending.stores:
                store.result()

    def close(self) -> None:
        for copies in (self._loader, self._storer):
            copies.shutdown(wait=True, cancel_futures=True)
        self._stores.clear()
        super().close()

    def _load_after(self, stores: Sequence[Future[None]], block: Block) -> Any:
        for store in stores:
            store.result()
        return self._recorded("load", self._sources.load, block)


def _has_ended(store: Future[None]) -> bool:
    """Whether a store has ended; raises the error of a store that failed."""
    if not store.done():
        return False
    store.result()
    return True

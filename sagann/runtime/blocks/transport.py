"""Transports: copies of blocks into and out of the memory that computes, while steps run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from sagann.plan.steps import Block
from sagann.plan.timeline import Lane
from sagann.runtime.blocks.host import Host
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.recorder import Recorder, recorded

BytesOf = Callable[[Block], int]
"Gives the bytes of a block."


class Copy(Protocol):
    """A copy that may be under way."""

    def result(self) -> Any:
        """Make later steps run after the copy. Gives the content of a block that was loaded."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A copy that a function waits for."""

    wait: Callable[[], Any]

    def result(self) -> Any:
        """See :class:`Copy`."""
        return self.wait()


class Transport:
    """Copies the blocks of one epoch, in the order of the calls. What waits for what is the plan's affair.

    This one copies within the process's memory, at once: no step runs at the same time. Memory has no engine that copies beside
    the processor. A thread that copies would take a core from a step, whose threads wait for each other.
    """

    def __init__(self, sources: Sources, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> None:
        self._sources = sources
        self._host = host
        self._bytes_of = bytes_of
        self._timeline = timeline

    def load(self, block: Block, after: Sequence[Copy]) -> Copy:
        """Start to load a block, after some stores."""
        content = self._recorded("load", self._sources.load, block)
        return Awaited(lambda: content)

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> Copy:
        """Start to copy a block out. Its tensors must not change before the copy has ended."""
        self._recorded("store", self._host.put, block, tensors)
        return Awaited(lambda: None)

    def close(self) -> None:
        """Wait for the copies under way, start no others, and forget the stored blocks."""
        self._host.close()

    def _recorded(self, lane: Lane, copy: Callable[..., Any], block: Block, *rest: Any) -> Any:
        with recorded(self._timeline, lane, block.label, self._bytes_of(block)):
            return copy(block, *rest)


class ThreadTransport(Transport):
    """Copies from and to files: one thread loads and one thread stores, while steps run.

    Blocks in the page cache are read at once instead, as within memory.
    """

    def __init__(self, sources: Sources, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> None:
        super().__init__(sources, host, bytes_of, timeline)
        self._store_error: BaseException | None = None
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-load")
        self._storer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-store")

    def load(self, block: Block, after: Sequence[Copy]) -> Copy:
        if all(isinstance(store, Future) and store.done() for store in after) and self._sources.is_at_hand(block):
            _await(after)
            return super().load(block, ())
        return self._loader.submit(self._load_after, after, block)

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> Copy:
        return self._storer.submit(self._store_in_turn, block, tensors)

    def _store_in_turn(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Store a block, unless a store before has failed: then this one fails with the same error."""
        if self._store_error is not None:
            raise self._store_error
        try:
            super().store(block, tensors)
        except BaseException as error:
            self._store_error = error
            raise

    def close(self) -> None:
        for copies in (self._loader, self._storer):
            copies.shutdown(wait=True, cancel_futures=True)
        super().close()

    def _load_after(self, stores: Sequence[Copy], block: Block) -> Any:
        _await(stores)
        return self._recorded("load", self._sources.load, block)


def _await(copies: Sequence[Copy]) -> None:
    """Wait for copies; raises the error of one that failed."""
    for copy in copies:
        copy.result()

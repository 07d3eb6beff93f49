"""Transport: how blocks come into the memory that computes and get out of it, while steps run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from torch import Tensor

from sagann.plan.steps import Block
from sagann.plan.timeline import Lane, block_name
from sagann.runtime.host import Host, RamHost
from sagann.runtime.recorder import Recorder, recorded

BytesOf = Callable[[Block], int]
"A block's size."


class Source(Protocol):
    """Where blocks are loaded from."""

    def load(self, block: Block) -> Any:
        """Read a block from where it lies."""
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
    """Copies blocks in the order in which it is asked to: loads one after the other, and stores beside them."""

    counts_process: bool
    "Whether what lies elsewhere is not in this process's memory, so that the budget holds for the process."

    def load(self, block: Block) -> Pending:
        """Begin to load a block."""
        ...

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> Pending:
        """Begin to copy a block out; until that is waited for, its tensors stay as they are."""
        ...

    def close(self) -> None:
        """Wait for the copies under way, and begin no others."""
        ...


class ThreadTransport:
    """Copies within the process's memory, or from and to files: loads and stores have a thread each.

    Args:
        source: gives a block in memory of its own.
        host: takes what is stored.
        bytes_of: a block's size.
        timeline: where copies are recorded.
    """

    def __init__(self, source: Source, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> None:
        self.counts_process = not isinstance(host, RamHost)
        self._source = source
        self._host = host
        self._bytes_of = bytes_of
        self._timeline = timeline
        self._stores: dict[Block, Future[None]] = {}
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-load")
        self._storer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-store")

    def load(self, block: Block) -> Pending:
        """Begin to load a block."""
        # Rows are picked from what lies on the host.
        after = None if block.needed_by is None else self._stores.get(block.whole)
        return self._loader.submit(self._fetch, block, after)

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> Pending:
        """Begin to copy a block out."""
        self._stores[block] = self._storer.submit(self._recorded, "store", self._host.put, block, tensors)
        return self._stores[block]

    def close(self) -> None:
        """Wait for the copies under way, and begin no others."""
        for copies in (self._loader, self._storer):
            copies.shutdown(wait=True, cancel_futures=True)
        self._host.close()

    def _fetch(self, block: Block, after: Future[None] | None) -> Any:
        if after is not None:
            after.result()
        return self._recorded("load", self._source.load, block)

    def _recorded(self, lane: Lane, copy: Callable[..., Any], block: Block, *rest: Any) -> Any:
        with recorded(self._timeline, lane, block_name(block), self._bytes_of(block)):
            return copy(block, *rest)

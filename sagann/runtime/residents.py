"""Residents: the blocks in the device's memory, and the copies that bring them there and take them away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from sagann.kernels.edge.state import GatherState
from sagann.kernels.memory import POOL
from sagann.plan.steps import UNLIMITED, Block, Move, Step
from sagann.plan.timeline import Lane, block_name
from sagann.runtime.allocator import HeapGuard
from sagann.runtime.host import Host, RamHost
from sagann.runtime.recorder import Recorder, recorded


class Residents:
    """Blocks by what they are, while a plan is obeyed.

    Loads and stores run in a thread each, in the order of the plan. A block that is loaded is waited for by the first
    step that needs it; one that is stored, by whoever drops or changes it.

    Args:
        load: reads a block from where it lies.
        host: takes what is stored.
        bytes_of: a block's size.
        budget_bytes: of all blocks and the temporaries of a step.
        timeline: where copies are recorded.
    """

    def __init__(
        self,
        load: Callable[[Block], Any],
        host: Host,
        bytes_of: Callable[[Block], int],
        budget_bytes: int,
        timeline: Recorder | None = None,
    ) -> None:
        self._load = load
        self._timeline = timeline
        self._host = host
        self._bytes_of = bytes_of
        self._budget_bytes = budget_bytes
        # Where the other blocks lie in the process's memory as well, no budget holds for the process.
        holds = budget_bytes < UNLIMITED and not isinstance(host, RamHost)
        self._heap = HeapGuard(budget_bytes) if holds else None
        self._held_bytes = 0
        self._blocks: dict[Block, Any] = {}
        self._loads: dict[Block, Future[Any]] = {}
        self._stores: dict[Block, Future[None]] = {}
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-load")
        self._storer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-store")

    def __getitem__(self, block: Block) -> Any:
        return self._blocks[block]

    def __setitem__(self, block: Block, value: Any) -> None:
        self._blocks[block] = value

    def get(self, block: Block) -> Any:
        """A block, or None where it is not made yet."""
        return self._blocks.get(block)

    def discard(self, block: Block) -> None:
        """Forget a block."""
        self._blocks.pop(block, None)

    def begin(self, step: Step) -> None:
        """Have a step's blocks there, and no more memory taken than planned."""
        for block in step.blocks:
            self._await_load(block)
        for block in step.writes:
            self._await_store(block)
            if block not in self._blocks:
                self._blocks[block] = None
                self._held_bytes += self._bytes_of(block)
        # What is kept for later is memory too.
        POOL.shrink(max(0, self._budget_bytes - self._held_bytes - step.temporary_bytes))
        if self._heap is not None:
            self._heap.check()

    def move(self, move: Move) -> None:
        """Begin a copy, or drop a block."""
        block = move.block
        if move.kind == "load":
            # Rows are picked from what lies on the host.
            after = None if block.needed_by is None else self._stores.get(block.whole)
            self._loads[block] = self._loader.submit(self._fetch, block, after)
            self._blocks[block] = None
            self._held_bytes += move.num_bytes
        elif move.kind == "store":
            tensors = _tensors_of(self._blocks[block])
            self._stores[block] = self._storer.submit(self._recorded, "store", self._host.put, block, tensors)
        else:
            self._await_load(block)
            self._await_store(block)
            self.discard(block)
            self._held_bytes -= move.num_bytes

    def close(self) -> None:
        """Wait for the copies under way, and forget all blocks."""
        for copies in (self._loader, self._storer):
            copies.shutdown(wait=True, cancel_futures=True)
        self._blocks.clear()
        self._host.close()

    def _fetch(self, block: Block, after: Future[None] | None) -> Any:
        if after is not None:
            after.result()
        return self._recorded("load", self._load, block)

    def _recorded(self, lane: Lane, copy: Callable[..., Any], block: Block, *rest: Any) -> Any:
        with recorded(self._timeline, lane, block_name(block), self._bytes_of(block)):
            return copy(block, *rest)

    def _await_load(self, block: Block) -> None:
        if (load := self._loads.pop(block, None)) is not None:
            self._blocks[block] = load.result()

    def _await_store(self, block: Block) -> None:
        if (store := self._stores.pop(block, None)) is not None:
            store.result()


def _tensors_of(content: Tensor | GatherState | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What a host keeps of a block."""
    if isinstance(content, GatherState):
        return content.tensors()
    return {"": content} if isinstance(content, Tensor) else content

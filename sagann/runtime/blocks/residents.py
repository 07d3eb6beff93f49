"""Residents: the blocks in the memory that computes, while a plan runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from sagann.kernels.edge.state import GatherState
from sagann.kernels.memory import POOL
from sagann.plan.steps import UNLIMITED, Block, Move, Step
from sagann.runtime.allocator import HeapGuard
from sagann.runtime.blocks.transport import BytesOf, Load, Transport


class Residents:
    """The contents of blocks by name.

    The first step that needs a block waits for its load. A step that writes a block waits for its store. Whether a drop waits
    for the store depends on the transport. The budget is of all blocks and of the temporary memory of a step.
    """

    def __init__(self, transport: Transport, bytes_of: BytesOf, budget_bytes: int) -> None:
        self._transport = transport
        self._bytes_of = bytes_of
        self._budget_bytes = budget_bytes
        # Where blocks that are not in use lie in the process's memory too, the budget does not hold for the process.
        holds = budget_bytes < UNLIMITED and transport.counts_process
        self._heap = HeapGuard(budget_bytes) if holds else None
        self._held_bytes = 0
        self._blocks: dict[Block, Any] = {}
        self._loads: dict[Block, Load] = {}

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

    def begin(self, step: Step) -> None:
        """Wait for a step's blocks, and free memory until the step fits as planned."""
        for block in step.blocks:
            self._await_load(block)
        for block in step.writes:
            self._transport.await_store(block)
            if block not in self._blocks:
                self._blocks[block] = None
                self._held_bytes += self._bytes_of(block)
        room_bytes = max(0, self._budget_bytes - self._held_bytes - step.temporary_bytes)
        self._transport.make_room(room_bytes)
        # Free blocks of the pool are memory too.
        POOL.shrink(room_bytes)
        if self._heap is not None:
            self._heap.check()

    def stored(self) -> Callable[[], None]:
        """A function that waits until the blocks that were stored so far lie outside, for another thread."""
        return self._transport.stored()

    def move(self, move: Move) -> None:
        """Start a copy, or drop a block."""
        block = move.block
        if move.kind == "load":
            self._loads[block] = self._transport.load(block)
            self._blocks[block] = None
            self._held_bytes += move.num_bytes
        elif move.kind == "store":
            self._transport.store(block, _tensors_of(self._blocks[block]))
        else:
            self._await_load(block)
            self._transport.drop(block)
            self.discard(block)
            self._held_bytes -= move.num_bytes

    def close(self) -> None:
        """Wait for the copies under way, and forget all blocks."""
        self._transport.close()
        self._loads.clear()
        self._blocks.clear()

    def _await_load(self, block: Block) -> None:
        if (load := self._loads.pop(block, None)) is not None:
            self._blocks[block] = load()


def _tensors_of(content: Tensor | GatherState | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors of a block's content."""
    if isinstance(content, GatherState):
        return content.tensors()
    return {"": content} if isinstance(content, Tensor) else content

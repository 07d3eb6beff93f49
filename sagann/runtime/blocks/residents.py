"""Residents: the blocks in the memory that computes, while a plan runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sagann.kernels.edge.state import GatherState
from sagann.kernels.memory import POOL
from sagann.plan.beside import Beside
from sagann.plan.steps import UNLIMITED, Block, Move, Plan, Step
from sagann.runtime.allocator import HeapGuard
from sagann.runtime.blocks.transport import BytesOf, Copy, Transport


class Residents:
    """The contents of blocks by name. Steps and copies wait for what the plan says.

    The budget is of all blocks and of the temporary memory of a step.
    """

    def __init__(self, plan: Plan, transport: Transport, bytes_of: BytesOf, beside: Beside) -> None:
        self._transport = transport
        self._bytes_of = bytes_of
        self._budget_bytes, self._waits = plan.budget_bytes, plan.waits
        # Where blocks that are not in use lie in the process's memory too, the budget does not hold for the process.
        holds = plan.budget_bytes < UNLIMITED and beside.counts_process
        self._heap = HeapGuard(plan.budget_bytes) if holds else None
        self._held_bytes = 0
        self._blocks: dict[Block, Any] = {}
        # Copies by their number in the plan, until something waits for them, and the blocks that are loaded.
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

    def begin(self, number: int, step: Step) -> None:
        """Wait for what a step waits for, whose number in the plan is given, and free memory that is kept for later use."""
        self._await(number)
        for block in step.writes:
            if block not in self._blocks:
                self._blocks[block] = None
                self._held_bytes += self._bytes_of(block)
        # Free blocks of the pool are memory too.
        POOL.shrink(max(0, self._budget_bytes - self._held_bytes - step.temporary_bytes))
        if self._heap is not None:
            self._heap.check()

    def await_store(self, block: Block) -> None:
        """Wait until a block that was stored lies on its host, for others to read it there."""
        self._transport.await_store(block)

    def move(self, number: int, move: Move) -> None:
        """Start a copy, or drop a block; the number is that in the plan."""
        block = move.block
        if move.kind == "load":
            after = [self._under_way[each][0] for each in self._waits_of(number) if each in self._under_way]
            self._blocks[block] = None
            self._held_bytes += move.num_bytes
            self._begin(number, self._transport.load(block, after), block)
        elif move.kind == "store":
            self._begin(number, self._transport.store(block, tensors_of(self._blocks[block])), None)
        else:
            self._await(number)
            self.discard(block)
            self._held_bytes -= move.num_bytes

    def close(self) -> None:
        """Wait for the copies under way, and forget all blocks."""
        self._transport.close()
        self._under_way.clear()
        self._blocks.clear()

    def _waits_of(self, number: int) -> tuple[int, ...]:
        return self._waits[number] if self._waits else ()

    def _begin(self, number: int, copy: Copy, loaded: Block | None) -> None:
        self._under_way[number] = copy, loaded
        if not self._waits:
            # Nothing is copied beside steps.
            self._end(number)

    def _await(self, number: int) -> None:
        for each in self._waits_of(number):
            self._end(each)

    def _end(self, number: int) -> None:
        """Make later steps run after a copy."""
        copy, loaded = self._under_way.pop(number, (None, None))
        if copy is not None:
            content = copy.result()
            if loaded is not None:
                self._blocks[loaded] = content


def tensors_of(content: Tensor | GatherState | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors of a block's content."""
    if isinstance(content, GatherState):
        return content.tensors()
    return {"": content} if isinstance(content, Tensor) else content

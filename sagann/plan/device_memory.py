"""Device memory: the blocks in a device's memory while a plan is made, and the operations of the plan so far.

A memory policy decides which block is loaded, evicted or dropped, and when. This module does it, and counts bytes. Every policy
that keeps blocks uses it, so the policies differ in their decisions alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache

from sagann.plan.steps import Block, Move, Plan, Step


class DeviceMemory:
    """The blocks in a device's memory, and the operations that brought them there.

    Args:
        bytes_of: size of a block.
        initial: blocks that lie outside of the device at the start.
        budget_bytes: bytes that a policy must not exceed. The policy makes room before it loads a block; nothing is checked here.
    """

    def __init__(self, bytes_of: Callable[[Block], int], initial: Iterable[Block], budget_bytes: int) -> None:
        self.bytes_of = bytes_of
        self.budget_bytes = budget_bytes
        self.resident: dict[Block, int] = {}
        "Bytes of the blocks in memory."
        self.dirty: set[Block] = set()
        "Blocks in memory whose content lies nowhere else."
        self.held_bytes = 0
        "Bytes of all blocks in memory."
        self.operations: list[Step | Move] = []
        "Steps and moves so far, in order."
        self._initial = frozenset(initial)
        # Blocks that lie outside of the device as they were written last.
        self._outside = set(self._initial)
        # Blocks that the coming step writes.
        self._being_made: Collection[Block] = ()
        self._peak_bytes = 0
        # Copying a block again is the same move.
        self._move = cache(Move)

    def can_load(self, block: Block) -> bool:
        """Whether a block lies outside, or can be stored now because rows are picked from it."""
        whole = block.whole
        is_made = whole in self.dirty and whole not in self._being_made
        return whole in self._outside or (block.needed_by is not None and is_made)

    def load(self, block: Block) -> None:
        """Load a block. Where rows are picked from a block that lies nowhere else, that block is stored first."""
        assert self.can_load(block), f"{block.label} is read before it is made"
        if block.whole in self.dirty:
            self.store(block.whole)
        self.operations.append(self._move("load", block, self.bytes_of(block)))
        self.make(block)

    def make(self, block: Block) -> None:
        """Take memory for a block that the coming step makes."""
        self.resident[block] = size = self.bytes_of(block)
        self.held_bytes += size

    def store(self, block: Block) -> None:
        """Store a block, which stays in memory."""
        self.operations.append(self._move("store", block, self.resident[block]))
        self.dirty.discard(block)
        self._outside.add(block)

    def evict(self, block: Block) -> None:
        """Drop a block that a later step reads, after a store if its content lies nowhere else."""
        if block in self.dirty:
            self.store(block)
        self._drop(block)

    def forget(self, block: Block, *, is_picked_later: bool) -> None:
        """Drop a block whose content no later step reads from memory; rows may still be picked from it."""
        if is_picked_later and block in self.dirty:
            self.store(block)
        self._drop(block)
        self.dirty.discard(block)

    def _drop(self, block: Block) -> None:
        size = self.resident.pop(block)
        self.held_bytes -= size
        self.operations.append(self._move("drop", block, size))

    def begin(self, step: Step) -> None:
        """Note what the coming step writes; all its blocks are in memory. Loads for later steps may follow before :meth:`run`."""
        for block in step.writes:
            self.dirty.add(block)
            self._outside.discard(block)
        self._being_made = step.writes

    def run(self, step: Step) -> None:
        """Add the step to the operations."""
        self._peak_bytes = max(self._peak_bytes, self.held_bytes + step.temporary_bytes)
        self.operations.append(step)
        self._outside.update(step.receives)
        self._being_made = ()

    def plan(self, bounds: Sequence[int], *, stores_early: bool = True) -> Plan:
        """The plan of all operations.

        Args:
            bounds: bounds of the intervals.
            stores_early: whether every store, which stands at the eviction, is moved right after the last step that writes the
                block. Only a policy that knows the coming steps can do so.
        """
        return Plan(
            operations=_stored_early(self.operations) if stores_early else tuple(self.operations),
            bounds=tuple(bounds),
            budget_bytes=self.budget_bytes,
            peak_bytes=self._peak_bytes,
            initial=self._initial,
        )


def last_picks(steps: Sequence[Step]) -> dict[Block, int]:
    """By block, number of the last step that sends the block or has rows picked from it, so that it must lie outside by then."""
    found: dict[Block, int] = {}
    for number, step in enumerate(steps):
        for block in step.reads:
            if block.needed_by is not None:
                found[block.whole] = number
        found |= dict.fromkeys(step.sends, number)
    return found


def _stored_early(operations: Sequence[Step | Move]) -> tuple[Step | Move, ...]:
    written: dict[Block, int] = {}
    stores: defaultdict[int, list[Move]] = defaultdict(list)
    for position, operation in enumerate(operations):
        if isinstance(operation, Step):
            written |= dict.fromkeys(operation.writes, position)
        elif operation.kind == "store":
            stores[written[operation.block]].append(operation)
    return tuple(
        each
        for position, operation in enumerate(operations)
        if operation.kind != "store"
        for each in (operation, *stores.get(position, ()))
    )

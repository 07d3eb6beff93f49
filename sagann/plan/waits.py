"""Waits: which operations of a plan end before another one starts, because of the blocks or the memory that both name.

Operations on one resource run one after the other, in the plan's order, and need no wait between them. Across resources:

- A step starts after the loads and receives of its blocks, and after the stores and sends of blocks that it writes.
- A load starts after the last store of a block that was dropped before it, because it takes that block's memory. A load of
  picked rows starts after the store of the block that they are picked from, and one of an undivided block after the stores of its pieces.
- A step that does not fit beside blocks that are dropped but not stored starts after the stores of the first of them, until it fits.
- A step that sends blocks starts after their stores, and a load of a block that an exchange receives starts after its end.
- A send starts when its block is there, a receive after its send. An all-reduce starts as a step does.
- A drop starts after the block's loads, receives and sends, and after its store where a device has copy engines, because its memory is
  reused in the order of its steps. Elsewhere the block leaves when it is stored.

The planner writes these waits, and the executor obeys them. The simulator derives those of its machine, by the same function.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from sagann.plan.steps import ALL, Block, Move, Step

Waits = Sequence[tuple[int, ...]]
"For each operation, the numbers of operations that end before it starts."


def route_of(move: Move) -> tuple[Block, str]:
    """What a send and its receive have in common: the block as its receiver names it, and the sender."""
    if move.kind == "send":
        return move.block._replace(owner=move.peer), move.owner
    return move.block, move.peer


def waits_of(
    operations: Sequence[Step | Move], budget_bytes: int, *, has_engines: bool
) -> tuple[tuple[int, ...], ...]:
    """For each operation, the numbers of the operations on other resources that must end before it starts."""
    return tuple(_Writer(operations, budget_bytes, has_engines=has_engines).found)


class _Memory:
    """The blocks in a device's memory, and those that leave it."""

    def __init__(self) -> None:
        self.held: set[Block] = set()
        self.held_bytes = 0
        # In order: bytes of dropped blocks, with the numbers of their stores, and negative bytes of the loads that wait for them.
        self.leaving: deque[tuple[int, int]] = deque()
        self.last_store = -1
        "The last store of a block that is dropped."

    def end(self, store: int) -> None:
        """Note that a store has ended. Stores end in order, and with them the waiting of the loads behind them."""
        while self.leaving and self.leaving[0][1] <= store:
            self.leaving.popleft()

    def first_leaving(self, room_bytes: int) -> int | None:
        """The first store of a block that leaves, where more than so many bytes may be in memory beyond those that are held."""
        most = total = 0
        for num_bytes, _ in reversed(self.leaving):
            total += num_bytes
            most = max(most, total)
        return self.leaving[0][1] if most > max(0, room_bytes) else None


class _Writer:
    def __init__(self, operations: Sequence[Step | Move], budget_bytes: int, *, has_engines: bool) -> None:
        self.budget_bytes, self.has_engines = budget_bytes, has_engines
        # Whatever a plan makes, it drops.
        self.bytes = {each.block: each.num_bytes for each in operations if isinstance(each, Move)}
        self.memories: defaultdict[str, _Memory] = defaultdict(_Memory)
        # By block: the last operation that brings the block in, and the last operations that read it beside the steps.
        self.coming: dict[Block, int] = {}
        self.stored: dict[Block, int] = {}
        self.sent: defaultdict[Block, list[int]] = defaultdict(list)
        # By number of a load, the store that it waits for.
        self.behind: dict[int, int] = {}
        # By block, the last store of all; by undivided block, the last store of a piece.
        self.last_stores: dict[Block, int] = {}
        self.last_pieces: dict[Block, int] = {}
        # By block that an exchange receives, the number of the step that waits for it.
        self.received: dict[Block, int] = {}
        self.sends: defaultdict[tuple[Block, str], deque[int]] = defaultdict(deque)
        for number, operation in enumerate(operations):
            if isinstance(operation, Move) and operation.kind == "send":
                self.sends[route_of(operation)].append(number)
        self.found = [
            self._step(number, each) if isinstance(each, Step) else self._move(number, each)
            for number, each in enumerate(operations)
        ]

    def _step(self, number: int, step: Step) -> tuple[int, ...]:
        after, memory = list(step.after), self.memories[step.owner]
        after += [self.last_stores[block] for block in step.sends if block in self.last_stores]
        self.received |= dict.fromkeys(step.receives, number)
        for block in step.blocks if self.coming else ():
            if block in self.coming:
                after.append(load := self.coming.pop(block))
                memory.end(self.behind.pop(load, -1))
        for block in step.writes:
            memory.end(self.stored.get(block, -1))
            self._write(block, after)
            self._hold(block)
        room_bytes = self.budget_bytes - memory.held_bytes - step.temporary_bytes
        while (store := memory.first_leaving(room_bytes)) is not None:
            after.append(store)
            memory.end(store)
        return tuple(after)

    def _write(self, block: Block, after: list[int]) -> None:
        if block in self.stored:
            after.append(self.stored.pop(block))
        if block in self.sent:
            after += self.sent.pop(block)

    def _hold(self, block: Block) -> None:
        memory = self.memories[block.owner]
        if block not in memory.held:
            memory.held.add(block)
            memory.held_bytes += self.bytes.get(block, 0)

    def _move(self, number: int, move: Move) -> tuple[int, ...]:
        kind, block, memory = move.kind, move.block, self.memories[move.block.owner]
        after = list(move.after)
        if kind == "load":
            if memory.last_store >= 0:
                after.append(memory.last_store)
                self.behind[number] = memory.last_store
            if memory.leaving:
                memory.leaving.append((-move.num_bytes, memory.last_store))
            self._hold(block)
            if block.needed_by is not None and block.whole in self.stored:
                after.append(self.stored[block.whole])
            if block.interval == ALL and block in self.last_pieces:
                after.append(self.last_pieces[block])
            if block.whole in self.received:
                after.append(self.received[block.whole])
        elif kind == "receive":
            if sends := self.sends[route_of(move)]:
                after.append(sends.popleft())
            self._hold(block)
        elif block in self.coming:
            after.append(self.coming.pop(block) if kind == "drop" else self.coming[block])
        if kind == "store":
            self.stored[block] = self.last_stores[block] = number
            if block.interval != ALL:
                self.last_pieces[block._replace(interval=ALL)] = number
        elif kind == "send":
            self.sent[block].append(number)
        elif kind == "drop":
            self._drop(move, memory, after)
        else:
            if kind == "all-reduce":
                self._write(block, after)
            self.coming[block] = number
        return tuple(after)

    def _drop(self, move: Move, memory: _Memory, after: list[int]) -> None:
        after += self.sent.pop(move.block, ())
        if move.block in memory.held:
            memory.held.remove(move.block)
            memory.held_bytes -= move.num_bytes
        if (store := self.stored.pop(move.block, None)) is None:
            return
        memory.last_store = max(memory.last_store, store)
        if self.has_engines:
            after.append(store)
        else:
            memory.leaving.append((move.num_bytes, store))

"""Waits: which operations of a plan must end before another one starts, because of the blocks that both name.

Operations on one resource run one after the other, in the plan's order, and need no waits between them. Across resources:

- A step waits for the loads and receives of its blocks, and for the stores and sends of blocks that it writes.
- A load waits for the last store of a block that was dropped before it, whose room it takes. A load of picked rows waits for
  the store of the block that they are picked from.
- A send waits until its block is there. A receive waits for its send. An all-reduce waits as a step does.
- A drop waits until its block has been loaded, received and sent. It need not wait for a store (:mod:`sagann.plan.leaving`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from sagann.plan.steps import Block, Move, Step

Route = tuple[Block, str]
"A block as its receiver names it, and the sender."


def route_of(move: Move) -> Route:
    """What a send and its receive have in common."""
    if move.kind == "send":
        return move.block._replace(owner=move.peer), move.block.owner
    return move.block, move.peer


def waits_of(operations: Sequence[Step | Move]) -> list[tuple[int, ...]]:
    """For each operation, the numbers of those that it waits for, but for earlier ones on its own resource."""
    return _Waits(operations).found


class _Waits:
    def __init__(self, operations: Sequence[Step | Move]) -> None:
        # By block: the last operation that brings it in, and the last ones that read it on their own.
        self.coming: dict[Block, int] = {}
        self.stored: dict[Block, int] = {}
        self.sent: defaultdict[Block, list[int]] = defaultdict(list)
        # By owner: the last store of a block that is dropped.
        self.leaving: dict[str, int] = {}
        self.sends: defaultdict[Route, deque[int]] = defaultdict(deque)
        for number, operation in enumerate(operations):
            if isinstance(operation, Move) and operation.kind == "send":
                self.sends[route_of(operation)].append(number)
        self.found = [
            (self._step(each) if isinstance(each, Step) else self._move(number, each))
            for number, each in enumerate(operations)
        ]

    def _step(self, step: Step) -> tuple[int, ...]:
        waits = list(step.waits)
        coming = self.coming
        if coming:
            waits += [coming.pop(block) for block in step.blocks if block in coming]
        for block in step.writes:
            self._changed(block, waits)
        return tuple(waits)

    def _changed(self, block: Block, waits: list[int]) -> None:
        if block in self.stored:
            waits.append(self.stored.pop(block))
        if block in self.sent:
            waits += self.sent.pop(block)

    def _move(self, number: int, move: Move) -> tuple[int, ...]:
        kind, block = move.kind, move.block
        waits = list(move.waits)
        if kind == "load":
            if block.owner in self.leaving:
                waits.append(self.leaving[block.owner])
            if block.needed_by is not None and block.whole in self.stored:
                waits.append(self.stored[block.whole])
            self.coming[block] = number
            return tuple(waits)
        if kind == "receive":
            sends = self.sends[route_of(move)]
            if sends:
                waits.append(sends.popleft())
            self.coming[block] = number
            return tuple(waits)
        if block in self.coming:
            waits.append(self.coming.pop(block) if kind == "drop" else self.coming[block])
        if kind == "store":
            self.stored[block] = number
        elif kind == "send":
            self.sent[block].append(number)
        elif kind == "all-reduce":
            self._changed(block, waits)
            self.coming[block] = number
        else:
            waits += self.sent.pop(block, ())
            if block in self.stored:
                self.leaving[block.owner] = max(self.leaving.get(block.owner, -1), self.stored.pop(block))
        return tuple(waits)

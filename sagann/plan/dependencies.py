"""Dependencies: which operations of a plan must end before another one starts, because of the blocks that both name.

Operations on one resource run one after the other, in the plan's order, and need no dependency between them. Across resources:

- A step starts after the loads and receives of its blocks, and after the stores and sends of blocks that it writes.
- A load starts after the last store of a block that was dropped before it, because it takes that block's memory. A load of
  picked rows starts after the store of the block that they are picked from.
- An exchange ends after the stores of the blocks that it sends, and a load of a block that it receives starts after its end.
- A send starts when its block is there, a receive after its send. An all-reduce starts as a step does.
- A drop starts after the block's loads, receives and sends, but not its store (:mod:`sagann.plan.pending_stores`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from sagann.plan.steps import Block, Move, Step


def route_of(move: Move) -> tuple[Block, str]:
    """What a send and its receive have in common: the block as its receiver names it, and the sender."""
    if move.kind == "send":
        return move.block._replace(owner=move.peer), move.owner
    return move.block, move.peer


def dependencies_of(operations: Sequence[Step | Move]) -> list[tuple[int, ...]]:
    """For each operation, the numbers of the operations on other resources that must end before it starts."""
    return _Dependencies(operations).found


class _Dependencies:
    def __init__(self, operations: Sequence[Step | Move]) -> None:
        # By block: the last operation that brings the block in, and the last operations that read it beside the steps.
        self.coming: dict[Block, int] = {}
        self.stored: dict[Block, int] = {}
        self.sent: defaultdict[Block, list[int]] = defaultdict(list)
        # By owner: the last store of a block that is dropped.
        self.last_store: dict[str, int] = {}
        # The stores of blocks that were sent since the last end of an exchange, by owner.
        self.going = defaultdict[str, list[int]](list)
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
        after = list(step.after)
        if step.sends:
            # The step itself does not wait: the exchange runs beside the steps.
            self.going[step.owner] += [self.stored[block] for block in step.sends if block in self.stored]
            if step.owner in self.last_store:
                self.going[step.owner].append(self.last_store[step.owner])
        elif step.kind in ("exchange", "exchange_grad"):
            after += self.going.pop(step.owner, ())
        self.received |= dict.fromkeys(step.receives, number)
        coming = self.coming
        if coming:
            after += [coming.pop(block) for block in step.blocks if block in coming]
        for block in step.writes:
            self._write(block, after)
        return tuple(after)

    def _write(self, block: Block, after: list[int]) -> None:
        if block in self.stored:
            after.append(self.stored.pop(block))
        if block in self.sent:
            after += self.sent.pop(block)

    def _move(self, number: int, move: Move) -> tuple[int, ...]:
        kind, block = move.kind, move.block
        after = list(move.after)
        if kind == "load":
            if block.owner in self.last_store:
                after.append(self.last_store[block.owner])
            if block.needed_by is not None and block.whole in self.stored:
                after.append(self.stored[block.whole])
            if block.whole in self.received:
                after.append(self.received[block.whole])
        elif kind == "receive":
            if sends := self.sends[route_of(move)]:
                after.append(sends.popleft())
        elif block in self.coming:
            after.append(self.coming.pop(block) if kind == "drop" else self.coming[block])
        if kind == "store":
            self.stored[block] = number
        elif kind == "send":
            self.sent[block].append(number)
        elif kind == "drop":
            after += self.sent.pop(block, ())
            if block in self.stored:
                self.last_store[block.owner] = max(self.last_store.get(block.owner, -1), self.stored.pop(block))
        else:
            if kind == "all-reduce":
                self._write(block, after)
            self.coming[block] = number
        return tuple(after)

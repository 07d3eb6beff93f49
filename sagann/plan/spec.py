"""The executable specification of plans: ``verify(plan)`` says which rule a plan breaks.

- Dependencies between operations have no circle, and every send has its receive.
- A step reads blocks in its device's memory: written, loaded or received before, and not dropped since.
- A block that an exchange sends lies outside of the device, as it was written last. One that it receives lies outside afterwards.
- A block is loaded only while it is not in memory and its last content lies outside. It is stored and sent while it is in
  memory. It is dropped, at the end at the latest. A received block is used.
- Blocks and temporaries of a device never exceed the budget, nor the peak that the plan states.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

from sagann.plan.dependencies import dependencies_of, route_of
from sagann.plan.steps import Block, Move, Plan, Step


class PlanError(AssertionError):
    """A plan breaks a rule."""


def verify(plan: Plan, steps: Sequence[Step] | None = None) -> Mapping[str, int]:
    """Check that a plan keeps every rule, and has the given steps in order; return the peak bytes of each device.

    Raises:
        PlanError: the plan breaks a rule; the message names the operation.
    """
    if steps is not None and [each for each in plan.operations if isinstance(each, Step)] != list(steps):
        raise PlanError("the plan has other steps than the schedule, or in another order")
    _match_sends(plan)
    memory = _Memory(plan)
    for number in _order(plan):
        memory.obey(number, plan.operations[number])
    if memory.resident:
        raise PlanError(f"{min(memory.resident).label} is never dropped")
    return memory.peaks


def _match_sends(plan: Plan) -> None:
    moves = [each for each in plan.operations if isinstance(each, Move)]
    sends, receives = (
        Counter((route_of(each), each.num_bytes) for each in moves if each.kind == kind)
        for kind in ("send", "receive")
    )
    for (block, sender), _ in (sends - receives) + (receives - sends):
        raise PlanError(f"a send without a receive, or the other way round: {block.label} from {sender}")
    reduced: defaultdict[Block, Counter[tuple[str, str]]] = defaultdict(Counter)
    for each in moves:
        if each.kind == "all-reduce":
            reduced[each.block._replace(owner="")][each.owner, each.occupies] += 1
    for block, members in reduced.items():
        owners, resources = ({member[which] for member in members} for which in (0, 1))
        is_whole = 1 < len(owners) == len(resources) == len(members) and len(set(members.values())) == 1
        if not is_whole:
            raise PlanError(
                f"an all-reduce of {block.label} needs each of its owners equally often, on a resource of its own"
            )


def _order(plan: Plan) -> list[int]:
    """Numbers of the operations, each after its dependencies and after the operations that its owner begins before."""
    operations = plan.operations
    followers: defaultdict[int, list[int]] = defaultdict(list)
    missing = [0] * len(operations)
    last: dict[str, int] = {}
    for number, (operation, others) in enumerate(zip(operations, dependencies_of(operations), strict=True)):
        owner = operation.owner
        for before in chain(others, [last[owner]] if owner in last else []):
            if not 0 <= before < len(operations):
                raise PlanError(f"operation {number} ({operation.label}) waits for {before}, which there is not")
            followers[before].append(number)
            missing[number] += 1
        last[owner] = number
    ready = [number for number, count in enumerate(missing) if not count]
    found: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        found.append(number)
        for later in followers[number]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, later)
    if len(found) < len(operations):
        stuck = next(number for number, count in enumerate(missing) if count)
        raise PlanError(f"operations wait in a circle, among them {stuck} ({operations[stuck].label})")
    return found


class _Memory:
    """Contents of each device's memory while the operations of a plan are applied."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.outside = set(plan.initial)
        self.sizes: dict[Block, int] = {}
        for each in plan.operations:
            if isinstance(each, Move) and each.kind != "all-reduce":
                known = self.sizes.setdefault(each.block, each.num_bytes)
                if known != each.num_bytes:
                    raise PlanError(f"{each.block.label} has {known} bytes here and {each.num_bytes} there")
        self.resident: set[Block] = set()
        self.unused: set[Block] = set()
        self.held: Counter[str] = Counter()
        self.peaks: dict[str, int] = {}
        self.at = ""

    def obey(self, number: int, operation: Step | Move) -> None:
        """Check an operation and apply it."""
        self.at = f"operation {number} ({operation.label})"
        if isinstance(operation, Step):
            self._step(operation)
        else:
            self._move(operation)

    def _require(self, holds: bool, why: str) -> None:
        if not holds:
            raise PlanError(f"{self.at}: {why}")

    def _step(self, step: Step) -> None:
        for block in step.blocks:
            self._require(block.owner == step.resource, f"{block.label} lies in another memory")
        for block in step.reads:
            self._require(block in self.resident, f"{block.label} is read and does not lie in memory")
        for block in step.writes:
            self._require(block in self.sizes, f"{block.label} is made and never dropped")
            if block not in self.resident:
                self._admit(block, block.owner)
            self.outside.discard(block)
        for block in step.sends:
            self._require(
                block in self.outside, f"{block.label} is sent and does not lie outside as it was written last"
            )
        for block in step.receives:
            self._require(block not in self.resident, f"{block.label} is received and lies in memory")
        self.outside.update(step.receives)
        self.unused.difference_update(step.blocks)
        self._reach(step.resource, step.temporary_bytes)

    def _move(self, move: Move) -> None:
        block = move.block
        is_resident = block in self.resident
        if move.kind == "load":
            self._require(not is_resident, "it lies in memory already")
            self._require(block.whole in self.outside, "it does not lie outside as it was written last")
            self._admit(block, block.owner)
        elif move.kind == "receive":
            self._require(not is_resident, "it lies in memory already")
            # Its room was taken by the send.
            self.resident.add(block)
            self.unused.add(block)
        else:
            self._require(is_resident, "it does not lie in memory")
        if move.kind == "store":
            self.outside.add(block)
        elif move.kind == "send":
            self.unused.discard(block)
            self.held[move.peer] += move.num_bytes
            self._reach(move.peer, 0)
        elif move.kind == "all-reduce":
            self.unused.discard(block)
            self.outside.discard(block)
        elif move.kind == "drop":
            self._require(block not in self.unused, "it was received and never used")
            self.resident.discard(block)
            self.held[block.owner] -= self.sizes[block]

    def _admit(self, block: Block, owner: str) -> None:
        self.resident.add(block)
        self.held[owner] += self.sizes[block]
        self._reach(owner, 0)

    def _reach(self, owner: str, temporary_bytes: int) -> None:
        taken = self.held[owner] + temporary_bytes
        self.peaks[owner] = max(self.peaks.get(owner, 0), taken)
        allowed = min(self.plan.budget_bytes, self.plan.peak_bytes)
        self._require(taken <= allowed, f"{owner} holds {taken} bytes, and {allowed} are allowed")

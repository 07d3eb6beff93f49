"""The executable specification of plans: ``verify(plan)`` says which rule a plan breaks.

- Waits between operations have no circle, and every send has its receive.
- Queues have no circle either: a transfer waits for the transfers before it in its queue, and an all-reduce for all of its owners. A queue that
  several owners share takes transfers as they arrive, which depends on times. Of such a queue, the order of each owner's transfers counts,
  and it has no all-reduce.
- A step reads blocks in its device's memory: written, loaded or received before, not dropped since, and not written by another device since.
- A block that an exchange sends lies outside of the device, as it was written last, and is not written until the exchange has ended.
  One that it receives is written from the begin on, and lies outside after the end. An exchange sends and receives exactly the blocks that it
  began with, and it ends.
- A block is loaded only while it is not in memory and its last content lies outside, whoever stored it, or in the memory of the peer from
  which it is loaded. It is stored and sent while it is in memory. It is dropped, at the end at the latest. A received block is used.
- A block that stays from epoch to epoch lies outside at the start, is never written, and is copied by no operation.
- Blocks and temporaries of a device never exceed the budget, nor the peak that the plan states. Blocks that stay always count.
- There are no races: operations that touch the same content, one of them to change it, are ordered by waits and lanes. So are a load and the
  stores of the blocks whose memory it takes; and a step fits beside all blocks that may still be on their way out. A lane is a device that
  computes, or a queue of a device. It runs its operations in the plan's order, and begins one after the steps before it have ended.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from sagann.errors import listed
from sagann.plan.steps import Block, Exchanged, Move, Plan, Step
from sagann.plan.waits import Waits, route_of, waits_of

_HANDED_OVER = frozenset(["send", "all-reduce"])
"Kinds of moves that every device hands to a queue, and does not wait for."
_IN_QUEUES = _HANDED_OVER | {"load", "store"}


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
    waits = plan.waits or waits_of(plan.operations, plan.room_bytes, has_engines=False)
    order = _order(plan, waits)
    memory = _Memory(plan, _Clocks(plan, waits, order))
    for number in order:
        memory.obey(number, plan.operations[number])
    if memory.resident:
        raise PlanError(f"{min(memory.resident).label} is never dropped")
    if memory.under_way:
        _, value, _ = min(memory.under_way)
        raise PlanError(f"the exchange of {value} never ends")
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
    users: defaultdict[str, set[str]] = defaultdict(set)
    for each in moves:
        if each.kind in _IN_QUEUES:
            users[each.occupies].add(each.owner)
    for each in moves:
        if each.kind == "all-reduce" and (others := users[each.occupies] - {each.owner}):
            raise PlanError(f"the {each.label} occupies {each.occupies}, which {min(others)} occupies too")
    for block, members in reduced.items():
        owners, resources = ({member[which] for member in members} for which in (0, 1))
        is_whole = 1 < len(owners) == len(resources) == len(members) and len(set(members.values())) == 1
        if not is_whole:
            raise PlanError(
                f"an all-reduce of {block.label} needs each of its owners equally often, on a resource of its own"
            )


def _order(plan: Plan, waits_of_all: Waits) -> list[int]:
    """Numbers of the operations in an order in which they may end. Refuses operations that wait for one another in queues.

    A device goes on when it has handed a send or an all-reduce to its queue. It goes on after the end of any other operation, because the
    computing threads of some devices load and store. So each operation has a begin and an end. The members of an all-reduce end together.
    """
    operations = plan.operations
    # The end of an operation has its number, plus their count. Members of an all-reduce have the end of the first member.
    ends = list(range(len(operations), 2 * len(operations)))
    waits: list[list[int]] = [[] for _ in range(2 * len(operations))]
    last_begun: dict[str, int] = {}
    last_queued: dict[tuple[str, str], int] = {}
    rounds: Counter[Block] = Counter()
    first_members: dict[tuple[Block, int], int] = {}
    for number, operation in enumerate(operations):
        if isinstance(operation, Move) and operation.kind == "all-reduce":
            name = operation.block._replace(owner="")
            rounds[operation.block] += 1
            ends[number] = first_members.setdefault((name, rounds[operation.block]), ends[number])
    for number, operation in enumerate(operations):
        owner, end = operation.owner, ends[number]
        if owner in last_begun:
            waits[number].append(last_begun[owner])
        for before in waits_of_all[number]:
            if not 0 <= before < len(operations):
                raise PlanError(f"operation {number} ({operation.label}) waits for {before}, which there is not")
        waits[end] += [number, *(ends[before] for before in waits_of_all[number])]
        if isinstance(operation, Move) and operation.kind in _IN_QUEUES:
            queue = owner, operation.occupies
            if queue in last_queued:
                waits[end].append(last_queued[queue])
            last_queued[queue] = end
        last_begun[owner] = number if operation.kind in _HANDED_OVER else end
    places = {at: place for place, at in enumerate(_sorted(waits, operations))}
    return sorted(range(len(operations)), key=lambda number: (places[ends[number]], number))


def _sorted(waits: Sequence[Sequence[int]], operations: Sequence[Step | Move]) -> list[int]:
    """All numbers, each after the numbers that it waits for, the least first where there is a choice.

    Args:
        waits: for each number, those that it waits for.
        operations: which the numbers stand for, as remainders of a division by their count.
    Raises:
        PlanError: some wait in a circle; the message names these.
    """
    followers: list[list[int]] = [[] for _ in waits]
    for number, others in enumerate(waits):
        for before in others:
            followers[before].append(number)
    missing = list(map(len, waits))
    ready = [number for number, count in enumerate(missing) if not count]
    found: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        found.append(number)
        for later in followers[number]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, later)
    if len(found) < len(waits):
        circle = dict.fromkeys(number % len(operations) for number in _circle(waits, missing))
        names = [f"{number} ({operations[number].label} of {operations[number].owner})" for number in circle]
        raise PlanError(
            f"operations wait in a circle, each for the next one, and the last for the first: {listed(names, 20)}"
        )
    return found


def _circle(waits: Sequence[Sequence[int]], missing: Sequence[int]) -> list[int]:
    """Numbers that wait in a circle, each for the next one, where ``missing`` counts what each number still waits for."""
    at = next(number for number, count in enumerate(missing) if count)
    places: dict[int, int] = {}
    while at not in places:
        places[at] = len(places)
        at = next(before for before in waits[at] if missing[before])
    return list(places)[places[at] :]


class _Clocks:
    """Which operations have ended for certain when another one starts: for each lane, how many of its operations have."""

    def __init__(self, plan: Plan, waits: Waits, order: Sequence[int]) -> None:
        last_step: dict[str, int] = {}
        before: list[list[int]] = []
        for number, operation in enumerate(plan.operations):
            before.append([*waits[number], *([last_step[operation.owner]] if operation.owner in last_step else [])])
            if _lane(operation) == operation.owner:
                last_step[operation.owner] = number
        self.places: dict[int, tuple[str, int]] = {}
        self.starts: dict[int, dict[str, int]] = {}
        lengths: Counter[str] = Counter()
        for number in order:
            lane = _lane(plan.operations[number])
            start = {lane: lengths[lane]}
            for ended in before[number]:
                at, length = self.places[ended]
                for name, known in (*self.starts[ended].items(), (at, length)):
                    start[name] = max(start.get(name, 0), known)
            lengths[lane] += 1
            self.places[number], self.starts[number] = (lane, lengths[lane]), start

    def are_ordered(self, first: int, second: int) -> bool:
        """Whether an operation has ended when another one starts."""
        lane, length = self.places[first]
        return self.starts[second].get(lane, 0) >= length


def _lane(operation: Step | Move) -> str:
    if isinstance(operation, Move) and operation.kind in _IN_QUEUES:
        return f"{operation.occupies} of {operation.owner}"
    return operation.owner


class _Content:
    """Who has touched a content: the last operation that changed it, and those that have read it since."""

    def __init__(self) -> None:
        self.changed = -1
        self.read: list[int] = []


class _Memory:
    """Contents of each device's memory while the operations of a plan are applied."""

    def __init__(self, plan: Plan, clocks: _Clocks) -> None:
        self.plan, self.clocks = plan, clocks
        # By their names outside (Block.outside): the blocks whose last content lies there, and how often each was written.
        self.outside = {block.outside for block in plan.initial}
        self.versions: Counter[Block] = Counter()
        self.sizes: dict[Block, int] = {}
        for each in plan.operations:
            if isinstance(each, Move) and each.kind != "all-reduce":
                known = self.sizes.setdefault(each.block, each.num_bytes)
                if known != each.num_bytes:
                    raise PlanError(f"{each.block.label} has {known} bytes here and {each.num_bytes} there")
        self.resident: dict[Block, int] = {}
        "Blocks in the devices' memories, each with the version of its content."
        # By owner, value and whether gradients travel: the exchange as it began, and the blocks that it has sent.
        self.under_way: dict[tuple[str, str, bool], tuple[Exchanged, set[Block]]] = {}
        self.unused: set[Block] = set()
        self.staying = {load.block for load in plan.staying}
        self.held: Counter[str] = Counter()
        for load in plan.staying:
            self.held[load.owner] += load.num_bytes
        self.peaks: dict[str, int] = {}
        # Contents by block and whether they lie in the device's memory, or outside.
        self.contents: defaultdict[tuple[Block, bool], _Content] = defaultdict(_Content)
        # By owner, in order: bytes of dropped blocks with their stores, and negative bytes of loads with the store that they wait for.
        self.leaving: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.number, self.at = -1, ""

    def obey(self, number: int, operation: Step | Move) -> None:
        """Check an operation and apply it."""
        self.number, self.at = number, f"operation {number} ({operation.label})"
        if isinstance(operation, Step):
            self._require(self.staying.isdisjoint(operation.writes), "it writes a block that stays")
            self._step(operation)
        else:
            if operation.block in self.staying:
                is_there = operation.block.outside in self.plan.initial and not operation.num_bytes
                self._require(is_there, "it copies a block that stays")
            self._move(operation)

    def _require(self, holds: bool, why: str) -> None:
        if not holds:
            raise PlanError(f"{self.at}: {why}")

    def _require_last(self, block: Block) -> None:
        is_last = self.resident[block] == self.versions[block.outside]
        self._require(is_last, f"{block.label} was written by another device since it came to {block.owner}")

    def _touch(self, block: Block, *, on_device: bool = True, changes: bool = False) -> None:
        """Note that the operation reads or changes a content."""
        content = self.contents[block, on_device]
        for other in [content.changed, *(content.read if changes else ())]:
            if other >= 0 and other != self.number and not self.clocks.are_ordered(other, self.number):
                raise PlanError(
                    f"{self.at}: it does not wait for operation {other}, which touches {block.label} too"
                )
        if changes:
            content.changed, content.read = self.number, []
        else:
            content.read.append(self.number)

    def _leaving(self, owner: str) -> list[tuple[int, int]]:
        """Of the blocks that leave, and the loads that wait for them, those whose stores need not have ended when the operation starts."""
        return [each for each in self.leaving[owner] if not self.clocks.are_ordered(each[1], self.number)]

    def _step(self, step: Step) -> None:
        for block in step.blocks:
            self._require(block.owner == step.resource, f"{block.label} lies in another memory")
        for block in step.reads:
            self._require(block in self.resident, f"{block.label} is read and does not lie in memory")
            self._require_last(block)
            self._touch(block)
        for block in step.writes:
            self._require(block in self.sizes, f"{block.label} is made and never dropped")
            if block not in self.resident:
                self._admit(block, block.owner)
            is_sent = any(block in sent for _, sent in self.under_way.values())
            self._require(not is_sent, f"{block.label} is written while it travels")
            self.outside.discard(block.outside)
            self.versions[block.outside] += 1
            self.resident[block] = self.versions[block.outside]
            self._touch(block, changes=True)
        if step.exchanged is not None:
            self._exchange(step, step.exchanged)
        self.unused.difference_update(step.blocks)
        self._reach(step.resource, step.temporary_bytes)
        self.leaving[step.resource] = self._leaving(step.resource)
        # Stores end in order, so the first of them may have ended, and loads that wait for one begin after all before it.
        taken = self.held[step.resource] + step.temporary_bytes
        for num_bytes, _ in reversed(self.leaving[step.resource]):
            taken += num_bytes
            self._require(taken <= self.plan.budget_bytes, "it does not fit beside blocks that may still be stored")

    def _exchange(self, step: Step, found: Exchanged) -> None:
        key = (step.owner, *found.key)
        if step.kind == "begin_exchange":
            self._require(key not in self.under_way, f"{found.value} travels already")
            self.under_way[key] = found, set()
            # What is received is written from now on.
            for block in found.receives:
                self._touch(block, on_device=False, changes=True)
            self.outside.difference_update(found.receives)
            return
        self._require(key in self.under_way, f"no exchange of {found.value} has begun")
        begun, sent = self.under_way[key]
        for block in step.sends:
            is_due = block in begun.sends and block not in sent
            self._require(is_due, f"{block.label} is sent twice, or is not what the exchange began with")
            self._require(
                block in self.outside, f"{block.label} is sent and does not lie outside as it was written last"
            )
            self._touch(block, on_device=False)
        sent.update(step.sends)
        if step.kind == "send_rows":
            return
        self._require(sent == set(begun.sends), f"the exchange of {found.value} ends before all is sent")
        self._require(
            step.receives == begun.receives, f"the exchange of {found.value} brings other blocks than it began with"
        )
        for block in step.receives:
            self._require(block not in self.resident, f"{block.label} is received and lies in memory")
            self._touch(block, on_device=False, changes=True)
        self.outside.update(step.receives)
        del self.under_way[key]

    def _move(self, move: Move) -> None:
        block = move.block
        is_resident = block in self.resident
        if move.kind == "load":
            self._require(not is_resident, "it lies in memory already")
            if (source := move.source) is None:
                self._require(block.outside in self.outside, "it does not lie outside as it was written last")
            else:
                self._require(source in self.resident, f"it does not lie in the memory of {move.peer}")
                self._require_last(source)
            for _, store in self._leaving(block.owner):
                raise PlanError(
                    f"{self.at}: it does not wait for operation {store}, whose block's memory it may take"
                )
            if leaving := self.leaving[block.owner]:
                leaving.append((-move.num_bytes, max(each for _, each in leaving)))
            self._admit(block, block.owner)
            if source is None:
                self._touch(block.outside, on_device=False)
            else:
                self._touch(source)
            self._touch(block, changes=True)
        elif move.kind == "receive":
            self._require(not is_resident, "it lies in memory already")
            # Its room was taken by the send.
            self.resident[block] = self.versions[block.outside]
            self.unused.add(block)
        else:
            self._require(is_resident, "it does not lie in memory")
        if move.kind == "store":
            self._require_last(block)
            self.outside.add(block.outside)
            self._touch(block)
            self._touch(block.outside, on_device=False, changes=True)
        elif move.kind == "send":
            self.unused.discard(block)
            self.held[move.peer] += move.num_bytes
            self._reach(move.peer, 0)
        elif move.kind == "all-reduce":
            self.unused.discard(block)
            self.outside.discard(block.outside)
            self.resident[block] = self.versions[block.outside]
        elif move.kind == "drop":
            self._require(block not in self.unused, "it was received and never used")
            del self.resident[block]
            self.held[block.owner] -= self.sizes[block]
            self._drop(move)

    def _drop(self, move: Move) -> None:
        """Forget a content. The block's memory is free when its stores have ended."""
        content = self.contents.pop((move.block, True), _Content())
        operations = self.plan.operations
        stores = [each for each in content.read if operations[each].kind == "store"]
        for other in {content.changed, *content.read}.difference(stores, [-1]):
            self._require(
                self.clocks.are_ordered(other, self.number),
                f"it does not wait for operation {other}, which uses the block",
            )
        self.leaving[move.block.owner] += [
            (move.num_bytes, each) for each in stores if not self.clocks.are_ordered(each, self.number)
        ]

    def _admit(self, block: Block, owner: str) -> None:
        self.resident[block] = self.versions[block.outside]
        self.held[owner] += self.sizes[block]
        self._reach(owner, 0)

    def _reach(self, owner: str, temporary_bytes: int) -> None:
        taken = self.held[owner] + temporary_bytes
        self.peaks[owner] = max(self.peaks.get(owner, 0), taken)
        allowed = min(self.plan.budget_bytes, self.plan.peak_bytes)
        self._require(taken <= allowed, f"{owner} holds {taken} bytes, and {allowed} are allowed")

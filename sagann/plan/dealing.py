"""Dealing: the columns of the chunk grid are dealt to several devices, each of which has a budget and residency of its own.

Column j of the grid (a destination interval), its rows of every value, and row j of the backward belong to one device. Intervals are dealt in
turn (:attr:`sagann.plan.intervals.PartIntervals.devices`). A device stores what others read of its rows as soon as it is made, and these load
it from outside, or from the memory of the device before them on a route (:mod:`sagann.plan.routes`).

Invariants: a state meets its chunks in the order that :class:`sagann.plan.sweeps.Traversal` states, whatever device it lies on, so rows have
the bits of one device with the same grid and traversal. Sums over all rows (losses, gradients of parameters, means) are summed by each device
over its intervals, and then added in the order of the devices. So one device has the same bits where it is named in the place of all.
In the order of the plan no operation waits for a later one.

References:
    Ma et al., NGra, 2018, Sec. 4.2; Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.3: a device has a column of chunks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from sagann.plan.intervals import PartIntervals
from sagann.plan.residency import LOOKAHEAD, Placement, stored_early
from sagann.plan.steps import Block, Move, Plan, Step

SHARING = frozenset(["share_means", "share_means_grad", "share_grads"])
"Kinds of steps that add what every device has."


class Before(NamedTuple):
    """The device from whose memory another one copies blocks."""

    device: str
    "Name of the device."
    link: str
    "Link that these copies occupy."


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """The way by which blocks reach several devices."""

    name: str
    "Name of the route."
    before: Mapping[str, Before] = field(default_factory=dict)
    "By device, the device from which it copies blocks that this one uses first. Other blocks come from outside."
    num_heads: int = 1
    "Number of groups of devices whose heads load different blocks (:attr:`sagann.plan.sweeps.Traversal.num_heads`)."


EACH = Route(name="each")
"Every device loads from outside whatever it reads."


def dealt(schedule: Iterable[Step], part: PartIntervals) -> list[Step]:
    """The steps of a schedule, each on the device of its interval. Every device assembles the undivided rows that its passes read."""
    steps = list(schedule)
    devices = list(dict.fromkeys(part.devices))
    assembled = _assembled(steps, part)
    begun: set[Block] = set()

    @cache
    def owned(block: Block, device: str) -> Block:
        return block._replace(owner=device)

    found: list[Step] = []

    def assemble(number: int) -> None:
        for piece, whole in assembled.get(number, ()):
            for device in devices:
                into = owned(whole, device)
                reads = (owned(piece, device), *([into] if into in begun else []))
                begun.add(into)
                found.append(
                    Step(
                        "assemble",
                        steps[max(number, 0)].number,
                        piece.interval,
                        reads=reads,
                        writes=(into,),
                        resource=device,
                    )
                )

    # What exists before the first step.
    assemble(-1)
    for number, step in enumerate(steps):
        device = part.devices[part.place_of(_own_interval(step))]
        found.append(
            replace(
                step,
                reads=tuple(owned(block, device) for block in step.reads),
                writes=tuple(owned(block, device) for block in step.writes),
                resource=device,
            )
        )
        assemble(number)
    if any(step.kind == "return" for step in steps):
        found.append(Step("share_grads", 0, 0, resource=devices[0]))
    return found


def _own_interval(step: Step) -> int:
    """The interval whose device runs a step: that of a chunk's state, or of its destinations."""
    states = [block.interval for block in step.writes if block.kind == "state"]
    return states[0] if states else step.interval if step.dst_interval < 0 else step.dst_interval


def _assembled(steps: Sequence[Step], part: PartIntervals) -> Mapping[int, list[tuple[Block, Block]]]:
    """By number of a step, the blocks of intervals that are assembled after it, each with the undivided block."""
    written: dict[Block, int] = {}
    known: set[Block] = set()
    found: defaultdict[int, list[tuple[Block, Block]]] = defaultdict(list)
    for number, step in enumerate(steps):
        for whole in step.reads:
            if whole.is_assembled and whole not in known:
                known.add(whole)
                for piece in (whole._replace(interval=interval) for interval in part.own):
                    found[written.get(piece, number - 1)].append((piece, whole))
        written |= dict.fromkeys(step.writes, number)
    return found


def place_dealt(
    steps: Sequence[Step],
    *,
    bytes_of: Callable[[Block], int],
    initial: Iterable[Block],
    bounds: Sequence[int],
    budget_bytes: int,
    lookahead: int = LOOKAHEAD,
    route: Route,
) -> Plan:
    """Add to the steps of several devices the moves that bring blocks into their memories, as :func:`sagann.plan.residency.place` does.

    ``budget_bytes`` is of each device.
    """
    initial = frozenset(initial)
    own: defaultdict[str, list[int]] = defaultdict(list)
    names = list(dict.fromkeys(step.resource for step in steps))
    for number, step in enumerate(steps):
        # The caller brings blocks at a return, which no device loads before.
        for name in names if step.kind == "return" else [step.resource]:
            own[name].append(number)
    exported = _exported(steps)
    outside = set(initial)
    operations: list[Step | Move] = []
    devices = {
        name: _Device(
            [steps[number] for number in own[name]],
            bytes_of,
            initial,
            bounds,
            budget_bytes,
            lookahead,
            numbers=own[name],
            exported=exported,
            outside=outside,
            operations=operations,
        )
        for name in names
    }
    for name, (other, link) in route.before.items():
        if name in devices and other in devices:
            devices[name].before = devices[other], link
    for step in steps:
        if step.kind == "return":
            operations.append(step)
            for each in devices.values():
                each.pass_by()
        else:
            devices[step.resource].next()
    return Plan(
        operations=_sharing(stored_early(operations)),
        bounds=tuple(bounds),
        budget_bytes=budget_bytes,
        peak_bytes=max(each.peak_bytes for each in devices.values()),
        initial=initial,
    )


def _exported(steps: Sequence[Step]) -> Mapping[int, list[Block]]:
    """By number of a step, the blocks that it writes and that another device reads before they are written again."""
    made: dict[Block, tuple[int, Block]] = {}
    found: defaultdict[int, list[Block]] = defaultdict(list)
    for number, step in enumerate(steps):
        for block in step.reads:
            at, source = made.get(block.outside, (-1, block))
            if source.owner != block.owner and source not in found[at]:
                found[at].append(source)
        for block in step.writes:
            made[block.outside] = number, block
    return found


class _Device(Placement):
    """The placement of a device's steps, beside those of others."""

    def __init__(
        self,
        steps: Sequence[Step],
        bytes_of: Callable[[Block], int],
        initial: Iterable[Block],
        bounds: Sequence[int],
        budget_bytes: int,
        lookahead: int,
        *,
        numbers: Sequence[int],
        exported: Mapping[int, list[Block]],
        outside: set[Block],
        operations: list[Step | Move],
    ) -> None:
        super().__init__(steps, bytes_of, initial, bounds, budget_bytes, lookahead)
        self.numbers, self.exported = numbers, exported
        self.outside, self.operations = outside, operations
        self.before: tuple[_Device, str] | None = None
        "Device from whose memory blocks are copied, and the link from it."
        self._at = 0

    def next(self) -> None:
        """Place the blocks of the next step."""
        self.advance(self._at)
        self._at += 1

    def pass_by(self) -> None:
        """Pass a step that no device computes."""
        self._at += 1

    def next_use(self, block: Block) -> int | None:
        """Number among all steps of the next step that uses a block."""
        uses = self.uses.get(block)
        return self.numbers[uses[-1]] if uses else None

    def _may_load_ahead(self, block: Block) -> bool:
        # What the device before uses first comes from there, once it is there.
        if self.before is not None and block.needed_by is None and not block.is_assembled:
            device, _ = self.before
            there = block._replace(owner=device.steps[0].resource)
            theirs, mine = device.next_use(there), self.next_use(block)
            if theirs is not None and mine is not None and theirs < mine and there not in device.resident:
                return False
        return super()._may_load_ahead(block)

    def _load(self, block: Block) -> None:
        if self.before is not None and not block.is_assembled:
            device, link = self.before
            there = block._replace(owner=device.steps[0].resource)
            if there in device.resident:
                self.operations.append(Move("load", block, self.bytes_of(block), there.owner, link))
                self._take(block)
                return
        super()._load(block)

    def _release(self, number: int) -> None:
        for block in self.exported.get(self.numbers[number], ()):
            if block in self.dirty:
                self._store(block)
        super()._release(number)


def _sharing(operations: Sequence[Step | Move]) -> tuple[Step | Move, ...]:
    """The operations, of which those that add what every device has come after the steps of all, and the steps that follow after these."""
    last: dict[str, int] = {}
    # By device, the number of the step that shares and that its next step waits for.
    shared: dict[str, int] = {}
    found = list(operations)
    for number, operation in enumerate(operations):
        if not isinstance(operation, Step):
            continue
        name = operation.resource
        after: tuple[int, ...] = (shared.pop(name),) if name in shared else ()
        if operation.kind in SHARING:
            after += tuple(at for other, at in last.items() if other != name)
            shared |= dict.fromkeys([other for other in last if other != name], number)
        if after:
            found[number] = replace(operation, after=(*operation.after, *after))
        last[name] = number
    return tuple(found)

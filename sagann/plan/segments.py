"""Segments: the runs of a device's operations that are recorded as one CUDA graph each.

A graph holds the work of one device: no copies from another device's memory, and no waits for other graphs. So the operations of a device are
cut where they wait for another device, and where a copy between devices begins and ends. Each operation has a level, and a segment is the
operations of one device and level:

- The level of an operation is at least that of the one before it on its device, and higher than those of the operations of other devices for
  which it waits.
- The level of a copy between devices is higher than that of the earlier work of its device, which used the memory; what waits for the copy
  has a higher level still. Other work of its level runs beside it. A step that adds up what all devices have begins with copies.

In the order of levels each segment is contiguous, and no operation waits for a later one. Each device keeps its order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sagann.plan.dealing import SHARING
from sagann.plan.steps import DEVICE, Move, Plan, Step


def is_between_devices(operation: Step | Move) -> bool:
    """Whether an operation copies from one device's memory to another's: a block from a peer, or rows of the result to the first device."""
    if isinstance(operation, Move):
        # Edges lie on the host as well, for good.
        return operation.source is not None and operation.block.kind != "edges"
    return operation.kind == "output" and operation.owner != DEVICE


def segmented(plan: Plan) -> Plan:
    """The plan of several devices in the order of segments, with :attr:`Plan.levels`; a plan of one device as it is."""
    operations = plan.operations
    places = {name: place for place, name in enumerate(sorted({each.owner for each in operations}))}
    if len(places) == 1:
        return plan
    levels: list[int] = []
    # By device: the level of its last operation, and of its last work in a graph.
    last, worked, first = Counter[str](), Counter[str](), 0
    for number, operation in enumerate(operations):
        owner, is_between = operation.owner, is_between_devices(operation)
        begins = is_between or operation.kind in SHARING
        level = max(first, last[owner], worked[owner] + begins)
        for before in plan.waits[number]:
            other = operations[before]
            is_apart = is_between or other.owner != owner or is_between_devices(other)
            level = max(level, levels[before] + is_apart)
        if operation.kind == "return":
            # The caller computes in between, with what all devices have.
            level = max(levels) + 1
            first = level + 1
        if not is_between and operation.kind != "drop":
            worked[owner] = level
        last[owner] = level
        levels.append(level)
    order = sorted(range(len(operations)), key=lambda at: (levels[at], places[operations[at].owner], at))
    numbers = {before: now for now, before in enumerate(order)}

    def moved(operation: Step | Move) -> Step | Move:
        # Only steps that share name others.
        after = tuple(numbers[each] for each in operation.after)
        return replace(operation, after=after) if isinstance(operation, Step) and after else operation

    return replace(
        plan,
        operations=tuple(moved(operations[at]) for at in order),
        waits=tuple(tuple(numbers[each] for each in plan.waits[at]) for at in order),
        levels=tuple(levels[at] for at in order),
    )

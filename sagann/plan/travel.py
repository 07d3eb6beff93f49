"""Travel: exchanges between workers run beside the steps.

A schedule has each exchange as one step, after what it sends is complete and before what it receives is read. Here it becomes steps of
three kinds. The exchange begins before the first block that it sends is complete; each block goes as soon as it is; and what comes is
waited for where a step reads it first. A worker to which nothing comes waits where the first state is finished. So rows of one interval
travel while the next ones are computed, and those of the last interval while chunks between own vertices are gathered.

Exchanges begin in the order in which the schedule has them, which is the same at all workers.

References:
    Jia et al., ROC, MLSys 2020, Sec. 3. We differ in that a layer begins before the rows of the halo have come: it waits where a step
    reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sagann.plan.steps import Block, Step


def travelling(schedule: Iterable[Step], *, throughout: bool = False) -> list[Step]:
    """The steps with their exchanges beside them. While one is under way, every step that computes counts the memory of its pieces.

    With ``throughout``, for intervals that stand for all of a part, every step counts it: exchanges of intervals with fewer edges end later.
    """
    steps = list(schedule)
    # What comes before a step, by the step's number.
    begins, others = defaultdict[int, list[Step]](list), defaultdict[int, list[Step]](list)
    held = [0] * len(steps)
    written: dict[Block, int] = {}
    exchanges: list[tuple[int, int]] = []
    for number, step in enumerate(steps):
        written |= dict.fromkeys(step.writes, number)
        if step.exchanged is None:
            continue
        complete = defaultdict[int, list[Block]](list)
        for block in step.sends:
            complete[written[block]].append(block)
        for at in sorted(complete):
            going = step.exchanged._replace(sends=tuple(complete[at]), receives=())
            others[at + 1].append(replace(step, kind="send_rows", exchanged=going))
        in_order = tuple(sorted(step.sends, key=written.__getitem__))
        steps[number] = replace(step, exchanged=step.exchanged._replace(sends=in_order))
        exchanges.append((min(complete, default=number), number))
    latest = len(steps)
    for first, number in reversed(exchanges):
        latest = min(latest, first)
        step, end = steps[number], _end(steps, number)
        assert step.exchanged is not None
        begins[latest].insert(0, replace(step, kind="begin_exchange"))
        others[end].append(replace(step, exchanged=step.exchanged._replace(sends=())))
        # One exchange is under way at a time, after those that have begun before.
        held[latest:end] = [max(before, step.temporary_bytes) for before in held[latest:end]]
    if throughout:
        held = [max(held, default=0)] * len(steps)
    found: list[Step] = []
    for number, step in enumerate(steps):
        found += begins[number]
        found += others[number]
        if step.exchanged is None:
            more = held[number]
            found.append(replace(step, temporary_bytes=step.temporary_bytes + more) if more else step)
    return found + others[len(steps)]


def _end(steps: Sequence[Step], number: int) -> int:
    """Number of the first step that reads what an exchange brings; where it brings nothing, of the first that finishes a state."""
    brought = set(steps[number].receives)
    for at in range(number + 1, len(steps)):
        step = steps[at]
        is_needed = (
            any(block.whole in brought for block in step.reads) if brought else step.kind.startswith("finish")
        )
        if is_needed or step.kind == "return":
            return at
    return len(steps)

"""Travel: exchanges between workers run beside the steps.

A schedule has each exchange as one step, after what it sends is complete and before what it receives is read. Here it becomes steps of
three kinds. The exchange begins before the first block that it sends is complete. Each block goes one step after it is, because it is
copied out of the device meanwhile; the last one goes where the schedule has the exchange. What comes is waited for where a step reads it
first; a worker to which nothing comes waits where the first state is finished. So rows of one interval travel while the next ones are
computed, and those of the last interval while chunks between own vertices are gathered.

Exchanges begin in the order in which the schedule has them, which is the same at all workers. A worker that waits for one has sent all blocks
of this one and of those before it, so workers never wait for each other.

References:
    Jia et al., ROC, MLSys 2020, Sec. 3. We differ in that a layer begins before the rows of the halo have come: it waits where a step
    reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sagann.plan.steps import Block, Exchanged, Step


def travelling(schedule: Iterable[Step]) -> list[Step]:
    """The steps with their exchanges beside them."""
    steps = list(schedule)
    # What comes before a step, by the step's number.
    begins, sends, ends = (defaultdict[int, list[Step]](list) for _ in range(3))
    # By number of an exchange, the blocks that it sends, by number of the step that completes them.
    exchanges: dict[int, defaultdict[int, list[Block]]] = {}
    written: dict[Block, int] = {}
    for number, step in enumerate(steps):
        written |= dict.fromkeys(step.writes, number)
        if step.exchanged is not None:
            complete = exchanges[number] = defaultdict(list)
            for block in sorted(step.sends, key=written.__getitem__):
                complete[written[block]].append(block)
    first = len(steps)
    for number, complete in reversed(exchanges.items()):
        step, first = steps[number], min(first, number, *complete)
        assert step.exchanged is not None
        begins[first].insert(0, replace(step, kind="begin_exchange"))
        for at, blocks in complete.items():
            going = Exchanged(step.exchanged.value, tuple(blocks), (), step.exchanged.is_grad)
            sends[min(at + 2, number)].append(replace(step, kind="send_rows", exchanged=going))
        ends[_end(steps, number)].insert(0, replace(step, exchanged=step.exchanged._replace(sends=())))
    found: list[Step] = []
    for number in range(len(steps) + 1):
        found += [*begins[number], *sends[number], *ends[number]]
        found += [step for step in steps[number : number + 1] if step.exchanged is None]
    return found


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

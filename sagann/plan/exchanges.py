"""Exchanges: which values of sources a worker completes by the rows of other workers, and when.

A value is exchanged once in a forward: before the first gather that reads it at sources, by its edge function or by a pass of its
backward. The gradients of the halo's rows go back once in a backward: before the first step that needs the complete gradient of
own rows. Rows of constant features are exchanged once for all epochs. All this follows from the captured model alone, so all workers
exchange the same values in the same order, whatever their intervals are.

Exchanges run beside the steps (:func:`travelling`). One begins before the first block that it sends is complete. Each block goes one step
after it is, because it is copied out of the device meanwhile. What comes is waited for where a step reads it first; a worker to which
nothing comes waits where the first state is finished. A worker that waits for an exchange has sent all blocks of this one and of those
before it, so workers never wait for each other.

References:
    Jia et al., ROC, MLSys 2020, Sec. 3. We differ in that a layer begins before the rows of the halo have come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sagann.compiler.model_program import Gather, ModelProgram
from sagann.plan.gradients import Gradients
from sagann.plan.steps import Block, Exchanged, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchanges:
    """The exchanges of an epoch, or of what is the same in every epoch."""

    first: Mapping[str, int] = field(default_factory=dict)
    "Number of the first gather that reads a value at sources, by the name of the value, in the order of the exchanges."
    made: frozenset[str] = frozenset()
    "Names of the values that steps make. The others lie outside of the device at the start."
    homes: Mapping[str, int] = field(default_factory=dict)
    "Number of the stage whose gradient, or the gradients before it, read the complete gradient of a value."

    @classmethod
    def of(cls, program: ModelProgram, gradients: Gradients, *, constant: bool = False) -> Exchanges:
        """The exchanges of an epoch; of the constants where ``constant`` is set."""
        first: dict[str, int] = {}
        homes: dict[str, int] = {}
        for number, stage in enumerate(program.stages):
            homes |= dict.fromkeys(stage.outputs, number)
        made = set() if constant else set(homes)
        for number, gather in enumerate(program.links):
            if not isinstance(gather, Gather):
                continue
            homes[gather.result] = number + 1
            if gather.constant == constant:
                made.add(gather.result)
            if constant:
                names = ["x"] if program.x_is_constant and gather.reads_x else []
            elif gather.constant:
                names = []
            else:
                read = _read_at_sources(gather, gradients)
                names = [name for name in read if name != "x" or not program.x_is_constant]
            for name in names:
                first.setdefault(name, number)
        return cls(
            first=first,
            made=frozenset(made & set(first)),
            homes={name: homes[name] for name in first if name in homes},
        )

    def before(self, gather: int) -> list[str]:
        """Names of the values that are completed before a gather."""
        return [name for name, number in self.first.items() if number == gather]

    def due(self, stage: int, pending: Collection[str]) -> list[str]:
        """Of some values, those whose gradients must be complete before the gradient of a stage."""
        return [name for name in self.first if name in pending and self.homes[name] == stage]


def _read_at_sources(gather: Gather, gradients: Gradients) -> list[str]:
    """Names of the values that a gather, or a pass of its backward, reads at sources."""
    functions = [gradients.function(gather), *(step.function for step in gradients.passes(gather))]
    return gather.values_at_sources({given.name for function in functions for given in function.inputs})


def travelling(schedule: Iterable[Step]) -> list[Step]:
    """The steps with their exchanges, each of which the schedule has as one step, beside them."""
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

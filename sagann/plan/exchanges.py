"""Exchanges: which values of sources a worker completes by the rows of other workers, and when.

A value is exchanged once in a forward: before the first gather that reads it at sources, by its edge function or by a pass of its
backward. The gradients of the halo's rows go back once in a backward: before the first step that needs the complete gradient of
own rows. Rows of constant features are exchanged once for all epochs. All this follows from the captured model alone, so all workers
exchange the same values in the same order, whatever their intervals are. :mod:`sagann.plan.travel` has exchanges run beside the steps.

References:
    Jia et al., ROC, MLSys 2020, Sec. 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sagann.compiler.model_program import Gather, ModelProgram
from sagann.plan.gradients import Gradients


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

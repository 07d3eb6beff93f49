"""What a streamed epoch moves with and without picked rows, at one budget and one P."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sagann.compiler.model_program import ModelProgram
from sagann.graph import Topology
from sagann.plan.epoch import Planned, plan_epoch
from sagann.plan.fit import fitted_intervals, hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.residency import BudgetError
from sagann.plan.selection import NEVER, Selection
from sagann.plan.steps import UNLIMITED, Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Plans of the same epoch, with the loss folded."""

    budget_bytes: int
    "The budget given."
    is_raised: bool
    "Whether the one asked for could not be met."
    bounds: tuple[int, ...]
    "Of the intervals."
    whole: Plan
    "With whole intervals."
    picking: Plan
    "With rows picked where that is cheaper."

    @property
    def times_fewer(self) -> float:
        """By how much picking lowers the bytes moved."""
        return self.whole.moved_bytes / self.picking.moved_bytes


def compare(
    program: ModelProgram, hops: Sequence[Topology], share: int, selection: Selection, *, on_disk: bool
) -> Compared:
    """Plan an epoch of a captured model with and without picked rows.

    Args:
        program: the model.
        hops: the topologies that it walks.
        share: the budget is what the plan of P = 1 takes, divided by this, or the least that can be met.
        selection: which rows are picked.
        on_disk: where what is not in use lies; else in memory.
    """
    gradients = Gradients(program)

    def plan(bounds: tuple[int, ...], budget_bytes: int, selection: Selection) -> Planned:
        sizes = hop_sizes(program, hops, bounds, selection)
        return plan_epoch(
            program,
            sizes,
            bounds,
            budget_bytes,
            gradients=gradients,
            folded=True,
            selection=selection,
            same_memory=not on_disk,
        )

    dense = plan((0, hops[0].num_dst), UNLIMITED, NEVER).plan
    wanted_bytes = budget_bytes = dense.peak_bytes // share
    try:
        bounds = fitted_intervals(program, hops, budget_bytes, gradients=gradients, same_memory=not on_disk).bounds
    except BudgetError as error:
        budget_bytes = error.needed_bytes
        bounds = fitted_intervals(program, hops, budget_bytes, gradients=gradients, same_memory=not on_disk).bounds
    return Compared(
        budget_bytes=budget_bytes,
        is_raised=budget_bytes != wanted_bytes,
        bounds=bounds,
        whole=plan(bounds, budget_bytes, NEVER).plan,
        picking=plan(bounds, budget_bytes, selection).plan,
    )

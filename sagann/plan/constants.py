"""Plan what is computed once, before the first epoch: gathers of features that no epoch changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from sagann.compiler.model_program import ModelProgram
from sagann.plan.epoch import Planned, cheaper, reads_in_place, without_collections
from sagann.plan.gradients import Gradients
from sagann.plan.intervals import sizes
from sagann.plan.memory import MEMORY_POLICIES
from sagann.plan.residency import LOOKAHEAD
from sagann.plan.schedule import Schedule
from sagann.plan.selection import NEVER, Selection
from sagann.plan.sizes import BlockSizes, HopSize
from sagann.plan.steps import MemoryPolicy


@without_collections()
def plan_constants(
    program: ModelProgram,
    hops: Mapping[int, HopSize],
    bounds: Sequence[int],
    budget_bytes: int,
    selection: Selection = NEVER,
    *,
    memory_policy: MemoryPolicy = "belady",
    same_memory: bool,
) -> Planned:
    """Plan what is computed once, before the first epoch; arguments as of :func:`sagann.plan.epoch.plan_epoch`."""
    kept = {gather.result for gather in program.gathers if gather.constant}
    in_place = reads_in_place(budget_bytes, same_memory=same_memory)
    known = BlockSizes(program, hops, sizes(tuple(bounds)), Gradients(program), edges_in_place=in_place)

    def placed(selects: bool) -> Planned:
        schedule = Schedule(program, hops, bounds, selects=selects, sizes=known)
        on_host = [block for block in schedule.initial() if block.name not in kept]
        steps = list(schedule.constants())
        plan = MEMORY_POLICIES[memory_policy](
            steps,
            bytes_of=schedule.sizes.of,
            on_host=on_host,
            bounds=bounds,
            budget_bytes=budget_bytes,
            lookahead=0 if same_memory else LOOKAHEAD,
        )
        return Planned(program, schedule, plan)

    return cheaper(partial(placed, False), partial(placed, True), hops, selection)

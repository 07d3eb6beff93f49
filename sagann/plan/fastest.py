"""Fastest: of the plans of all memory policies, the one that takes the fewest simulated seconds.

Fewer bytes are not always faster: where steps take longer than copies, a plan that loads ahead hides more bytes than another one
moves. The steps are the same for all policies, so their numbers do not depend on the rates that are simulated.
"""

from __future__ import annotations

from typing import get_args

from sagann.plan.epoch import Planned, replaced
from sagann.plan.machine import Machine
from sagann.plan.simulate import Tier, simulate
from sagann.plan.steps import MemoryPolicy
from sagann.plan.work import StepWork


def fastest(found: Planned, machine: Machine, *, tier: Tier) -> Planned:
    """The same steps of an epoch that Belady's rule placed, with the blocks that the fastest policy keeps.

    Of policies that take equally long, the one that moves fewer bytes is taken.

    Args:
        found: epoch, placed by Belady's rule.
        machine: rates that seconds of steps and copies follow from.
        tier: where blocks lie outside of the device.
    """
    work = StepWork(found.schedule)

    def cost(planned: Planned) -> tuple[float, int]:
        timeline = simulate(planned.plan, lambda step: work.of(step).seconds(machine), machine, tier=tier)
        return timeline.seconds, planned.plan.moved_bytes

    rivals = [replaced(found, policy) for policy in get_args(MemoryPolicy) if policy != found.plan.memory_policy]
    return min([found, *rivals], key=cost)

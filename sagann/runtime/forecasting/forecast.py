"""Forecast: the seconds and bytes of an epoch, before the epoch runs."""

from __future__ import annotations

from dataclasses import dataclass

from sagann.free_space import memory
from sagann.graph.feature_store import Features
from sagann.plan.epoch import Planned
from sagann.plan.machine import Machine
from sagann.plan.simulate import Tier, simulate
from sagann.plan.timeline import Timeline
from sagann.runtime.forecasting.rehearsal import Rehearsal, step_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """An epoch as it is expected to run."""

    planned: Planned
    "Plan of the epoch."
    machine: Machine
    "Machine that the forecast is for."
    timeline: Timeline
    "Steps and copies, with their times."
    tier: Tier
    "Tier in which blocks that are not in use are assumed to lie."
    rehearsed: bool
    "Whether steps were timed here. If not, only the machine's rates are known."


def forecast(
    planned: Planned,
    machine: Machine,
    *,
    on_disk: bool,
    rehearsal: Rehearsal | None = None,
    features: Features | None = None,
) -> Forecast:
    """Simulate an epoch.

    Args:
        on_disk: whether blocks that are not in use lie in files.
        rehearsal: model and graph of the plan, whose steps are first timed on this machine. Without a rehearsal the forecast
            uses the machine's rates alone, as for a machine that is not at hand.
        features: features of the graph, for a forecast without a rehearsal: the non-zeros of sparse features count.
    """
    # The tier depends on free memory, so it is asked for before a rehearsal, which takes memory and keeps some.
    tier = _tier(planned, machine, on_disk=on_disk, is_at_hand=rehearsal is not None)
    timeline = simulate(planned.plan, step_seconds(planned, machine, rehearsal, features), machine, tier=tier)
    return Forecast(planned=planned, machine=machine, timeline=timeline, tier=tier, rehearsed=rehearsal is not None)


def _tier(planned: Planned, machine: Machine, *, on_disk: bool, is_at_hand: bool) -> Tier:
    """The tier of blocks that are not in use. Files are cached if memory has room for all of them beside the budget.

    The free memory of a machine that is not at hand is unknown, so its files are taken to lie on the disk.
    """
    if not on_disk:
        return "memory"
    schedule, plan = planned.schedule, planned.plan
    # Sparse features are read where they lie.
    features = 0 if planned.program.x_is_sparse else plan.bounds[-1] * schedule.sizes.row_bytes("x")
    files = schedule.edge_bytes + schedule.constant_bytes + plan.spilled_bytes + features
    # The budget of a machine with a device is of the device's memory.
    beside = plan.budget_bytes if machine.host_to_device_bytes is None else 0
    free = memory().usable_bytes if is_at_hand else None
    return "file cache" if free is not None and files + beside <= free else "disk"

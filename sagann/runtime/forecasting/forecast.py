"""Forecast: the seconds and bytes of an epoch, before the epoch runs."""

from __future__ import annotations

from dataclasses import dataclass

from sagann.graph.feature_store import Features
from sagann.plan.epoch import Planned
from sagann.plan.machine import Machine
from sagann.plan.simulate import Tier, simulate
from sagann.plan.timeline import Timeline
from sagann.runtime.forecasting.rehearsal import Rehearsal, step_seconds
from sagann.runtime.forecasting.tier import tier_of


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
    tier = tier_of(planned, machine, on_disk=on_disk, is_at_hand=rehearsal is not None)
    timeline = simulate(planned.plan, step_seconds(planned, machine, rehearsal, features), machine, tier=tier)
    return Forecast(planned=planned, machine=machine, timeline=timeline, tier=tier, rehearsed=rehearsal is not None)

"""Forecast: the seconds and bytes of an epoch, before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sagann.free_space import memory
from sagann.graph.graph import Graph
from sagann.plan.epoch import Planned, revisited
from sagann.plan.machine import Machine
from sagann.plan.refine import MOST_SIMULATIONS, Refined, refine
from sagann.plan.simulate import StepSeconds, Tier, simulate
from sagann.plan.steps import Plan, Step
from sagann.plan.timeline import Timeline
from sagann.plan.visits import Visits
from sagann.runtime.forecasting.rehearsal import Factors, key_of, rehearse, work_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """An epoch as it is expected to run."""

    planned: Planned
    "Plan of the epoch."
    machine: Machine
    "Machine that the epoch is foretold for."
    timeline: Timeline
    "Steps and copies, with their times."
    tier: Tier
    "Tier in which blocks that are not in use are assumed to lie."
    rehearsed: bool
    "Whether steps were timed here, or only the machine's rates are known."


def forecast(
    planned: Planned,
    machine: Machine,
    *,
    on_disk: bool,
    rehearsal: tuple[nn.Module, Graph] | None = None,
) -> Forecast:
    """Simulate an epoch.

    Args:
        planned: the epoch.
        machine: its rates.
        on_disk: whether blocks that are not in use lie in files.
        rehearsal: the model and the graph of the plan, to time steps of on this machine first; without it, the
            machine's rates are all there is, as for a machine that is not at hand.
    """
    tier = _tier(planned, machine, on_disk=on_disk, is_at_hand=rehearsal is not None)
    step_s = _step_seconds(planned, machine, rehearsal)
    timeline = simulate(planned.plan, step_s, machine, tier=tier)
    return Forecast(planned=planned, machine=machine, timeline=timeline, tier=tier, rehearsed=rehearsal is not None)


def refined(
    planned: Planned,
    machine: Machine,
    *,
    on_disk: bool,
    rehearsal: tuple[nn.Module, Graph] | None = None,
    most_simulations: int = MOST_SIMULATIONS,
) -> Refined:
    """Orders of an epoch's chunks with which it should take less time, by simulated swaps.

    Args:
        planned: the epoch, in column order.
        machine: its rates.
        on_disk: whether blocks that are not in use lie in files.
        rehearsal: as of :func:`forecast`.
        most_simulations: ends the search.
    """
    tier = _tier(planned, machine, on_disk=on_disk, is_at_hand=rehearsal is not None)
    step_s = _step_seconds(planned, machine, rehearsal)

    def plan_of(visits: Visits) -> Plan:
        return revisited(planned, visits).plan

    visits = planned.schedule.visits
    return refine(plan_of, visits, step_s, machine, tier=tier, most_simulations=most_simulations)


def _tier(planned: Planned, machine: Machine, *, on_disk: bool, is_at_hand: bool) -> Tier:
    """Where blocks will lie that are not in use: files are cached where memory has room for all of them beside the budget.

    Asked before a rehearsal, which takes memory and keeps some.

    Args:
        planned: the epoch.
        machine: whose budget is of a device's memory where it has one.
        on_disk: whether they lie in files.
        is_at_hand: whether this is the machine that it will run on; of others the memory is not known.
    """
    if not on_disk:
        return "memory"
    schedule, plan = planned.schedule, planned.plan
    # Sparse features are read where they lie.
    features = 0 if planned.program.x_is_sparse else plan.bounds[-1] * schedule.sizes.row_bytes("x")
    files = schedule.edge_bytes + schedule.constant_bytes + plan.spilled_bytes + features
    beside = plan.budget_bytes if machine.host_to_device_bytes is None else 0
    free = memory().usable_bytes if is_at_hand else None
    return "file cache" if free is not None and files + beside <= free else "disk"


def _step_seconds(planned: Planned, machine: Machine, rehearsal: tuple[nn.Module, Graph] | None) -> StepSeconds:
    """How long a step takes by the machine's rates, and by rehearsal where there is one."""
    work = work_of(planned)
    factors: Factors = {} if rehearsal is None else rehearse(*rehearsal, planned, machine)

    def step_s(step: Step) -> float:
        return work.of(step).seconds(machine) * factors.get(key_of(step), 1.0)

    return step_s

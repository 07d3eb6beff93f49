"""Forecast: the seconds and bytes of an epoch, before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sagann.graph.graph import Graph
from sagann.plan.intervals import sizes
from sagann.plan.machine import Machine
from sagann.plan.refine import MOST_SIMULATIONS, Refined, refine
from sagann.plan.simulate import StepSeconds, simulate
from sagann.plan.steps import Plan, Step
from sagann.plan.timeline import Timeline
from sagann.plan.visits import Visits
from sagann.plan.work import StepWork
from sagann.runtime.planning import Planned, revisited
from sagann.runtime.rehearsal import Factors, key_of, rehearse


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What an epoch will be like."""

    planned: Planned
    "What is done."
    machine: Machine
    "Where."
    timeline: Timeline
    "When."
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
    step_s = _step_seconds(planned, machine, rehearsal)
    timeline = simulate(planned.plan, step_s, machine, on_disk=on_disk)
    return Forecast(planned=planned, machine=machine, timeline=timeline, rehearsed=rehearsal is not None)


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
    step_s = _step_seconds(planned, machine, rehearsal)

    def plan_of(visits: Visits) -> Plan:
        return revisited(planned, visits).plan

    visits = planned.schedule.visits
    return refine(plan_of, visits, step_s, machine, on_disk=on_disk, most_simulations=most_simulations)


def _step_seconds(planned: Planned, machine: Machine, rehearsal: tuple[nn.Module, Graph] | None) -> StepSeconds:
    """How long a step takes by the machine's rates, and by rehearsal where there is one."""
    work = StepWork(planned.program, planned.schedule, sizes(planned.plan.bounds))
    factors: Factors = {} if rehearsal is None else rehearse(*rehearsal, planned, machine)

    def step_s(step: Step) -> float:
        return work.of(step).seconds(machine) * factors.get(key_of(step), 1.0)

    return step_s

"""Chunk swaps: better orders of the chunks of each strip, found by simulated swaps.

A chunk whose copies take longer than its computation should come beside a chunk of the opposite kind. So within a strip the
two most unlike chunks change places, and the epoch is simulated. The swap stays if the epoch became shorter. Then the next two
are tried, until no strip gains or the limit of simulations is reached. The same seconds give the same result.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2 and Fig. 6: swap-based pipeline scheduling. We begin with an order that
    loads few bytes, not with a random one. We simulate a whole epoch with its loads placed again, not one column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from sagann.plan.epoch import Planned
from sagann.plan.machine import Machine
from sagann.plan.residency import place
from sagann.plan.simulate import StepSeconds, Tier, copy_rates, simulate
from sagann.plan.steps import Block, Move, Plan, Step
from sagann.plan.sweeps import PassKey, Traversal, chunk_ends
from sagann.plan.work import StepWork


def revisited(found: Planned, traversal: Traversal) -> Planned:
    """The same epoch, which has a backward, with another order of sweeps and strips."""
    schedule = found.schedule.changed(traversal=traversal)
    plan = place(
        list(schedule.epoch()),
        bytes_of=schedule.sizes.of,
        initial=[*schedule.initial(), *schedule.upstream()],
        bounds=found.plan.bounds,
        budget_bytes=found.plan.budget_bytes,
    )
    return found._replace(schedule=schedule, plan=plan)


def refined(found: Planned, machine: Machine, *, most_simulations: int) -> Planned:
    """An epoch that was planned for files, with orders of its chunks that take less time on a machine's disk."""
    work = StepWork(found.schedule)
    traversal = refine(
        lambda traversal: revisited(found, traversal).plan,
        found.schedule.traversal,
        lambda step: work.of(step).seconds(machine),
        machine,
        tier="disk",
        most_simulations=most_simulations,
    )
    return revisited(found, traversal)


def refine(
    plan_of: Callable[[Traversal], Plan],
    traversal: Traversal,
    step_s: StepSeconds,
    machine: Machine,
    *,
    tier: Tier,
    most_simulations: int,
) -> Traversal:
    """Swap chunks as long as that makes the simulated epoch shorter; ``plan_of`` plans the epoch with a given traversal."""
    rate = copy_rates(machine, tier)["load"]

    def seconds(plan: Plan) -> float:
        return simulate(plan, step_s, machine, tier=tier).seconds

    plan = plan_of(traversal)
    best_s = seconds(plan)
    simulated, gained = 1, True
    while gained:
        gained = False
        for at, chunks in _strips(plan, traversal, step_s, rate).items():
            for order in _swapped(chunks):
                if simulated >= most_simulations:
                    return traversal
                tried = replace(traversal, refined={**traversal.refined, at: order})
                other = plan_of(tried)
                if other.operations == plan.operations:
                    # The chunks of this pass must come in ascending order.
                    break
                simulated += 1
                if (now_s := seconds(other)) < best_s:
                    plan, traversal, best_s, gained = other, tried, now_s, True
                    break
    return traversal


def _strips(
    plan: Plan, traversal: Traversal, step_s: StepSeconds, rate: float
) -> Mapping[tuple[PassKey, int], Mapping[int, float]]:
    """For each pass and number of a strip, the seconds of loads less those of steps, by other end of the chunk, in the order of the visit."""
    owns = _owns(plan)
    found: defaultdict[tuple[PassKey, int], dict[int, float]] = defaultdict(dict)
    pending: dict[Block, int] = {}
    for operation in plan.operations:
        if isinstance(operation, Move):
            if operation.kind == "load":
                pending[operation.block] = operation.num_bytes
            continue
        loaded = sum(pending.pop(block, 0) for block in operation.reads)
        ends = chunk_ends(operation)
        if ends is None:
            continue
        key, own, other = ends
        chunks = found[key, owns[key].index(own) // traversal.widths.get(key, 1)]
        chunks[other] = chunks.get(other, 0.0) + loaded / rate - step_s(operation)
    return found


def _swapped(chunks: Mapping[int, float]) -> Iterator[tuple[int, ...]]:
    """Orders in which a chunk with long loads and a chunk with long steps have changed places, the most unlike ones first."""
    order = list(chunks)
    ranked = sorted(order, key=lambda other: (chunks[other], other))
    for one, two in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
        places = {one: two, two: one}
        yield tuple(places.get(other, other) for other in order)


def _owns(plan: Plan) -> Mapping[PassKey, list[int]]:
    """The intervals of each pass's rows, in the order of its sweep, which is that of their finish."""
    found: defaultdict[PassKey, list[int]] = defaultdict(list)
    for operation in plan.operations:
        if isinstance(operation, Step):
            if operation.kind == "finish":
                found[PassKey("gather", operation.number)].append(operation.interval)
            elif operation.kind == "finish_grad":
                found[PassKey("gather_grad", operation.number, operation.backward_pass)].append(operation.interval)
    return found

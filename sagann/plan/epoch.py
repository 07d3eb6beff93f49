"""Plan an epoch of a captured model over a cut graph: its schedule, and what lies in memory while its steps run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import NamedTuple

from sagann.compiler.model_program import ModelProgram
from sagann.graph.topology import Topology
from sagann.plan.edges_of_type import gathered_hops, topology_of
from sagann.plan.gradients import Gradients
from sagann.plan.intervals import sizes
from sagann.plan.memory import MEMORY_POLICIES
from sagann.plan.orders import POLICIES, Order
from sagann.plan.residency import LOOKAHEAD, BudgetError, place
from sagann.plan.schedule import Schedule
from sagann.plan.selection import NEVER, Selection
from sagann.plan.sizes import CSC, BlockSizes, HopSize, constants_of_stages
from sagann.plan.steps import UNLIMITED, Block, MemoryPolicy, Plan, Step
from sagann.plan.strips import strip_widths
from sagann.plan.visits import Visits


class Planned(NamedTuple):
    """What a call of a streamed model does."""

    program: ModelProgram
    "The captured model."
    schedule: Schedule
    "Its steps, and the sizes of blocks."
    plan: Plan
    "Steps and moves within the budget."


@contextmanager
def without_collections() -> Iterator[None]:
    """Inside the ``with`` block, no garbage collection runs in this process.

    A plan has many objects and no reference cycles: collections would take two fifths of the planning time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_collections()
def plan_epoch(
    program: ModelProgram,
    hops: Mapping[int, HopSize],
    bounds: Sequence[int],
    budget_bytes: int,
    *,
    gradients: Gradients,
    trains: bool = True,
    folded: bool = False,
    order: Order = "column",
    selection: Selection = NEVER,
    visits: Visits | None = None,
    memory_policy: MemoryPolicy = "belady",
    same_memory: bool,
    has_mapped_x: bool = False,
) -> Planned:
    """Plan an epoch.

    Stages keep what their gradients read where that moves no more bytes than running them again, or where copying it costs
    less than that. Chunks have rows picked for them where that costs less than moving whole intervals, and are visited in
    the same order.

    Args:
        program: the captured model.
        hops: the sizes of its hops' chunks.
        bounds: of the intervals.
        budget_bytes: of blocks and temporaries.
        gradients: what the backward computes.
        trains: whether there is a backward.
        folded: whether the loss is computed with the result's rows.
        order: in which passes go through the chunk grid.
        selection: of the rows that chunks need.
        visits: in which order passes go over the intervals; by default zigzag, in strips as wide as moves the fewest bytes.
        memory_policy: which blocks the device keeps.
        same_memory: whether what is not in use lies in the memory that computes, whose cores copy. Then nothing is loaded
            ahead, and edges, and constants that stages alone read, are read where they lie: they take no room.
        has_mapped_x: whether features are mapped from a file, and so read by position.
    Raises:
        BudgetError: a step needs more than the budget.
    """
    in_place = reads_in_place(budget_bytes, same_memory=same_memory)
    # Pages of a map are a file's all the same.
    values = constants_of_stages(program) - ({"x"} if has_mapped_x else set()) if in_place else frozenset()
    block_sizes = BlockSizes(
        program, hops, sizes(tuple(bounds)), gradients, edges_in_place=in_place, values_in_place=values
    )

    def placed(selects: bool, visits: Visits, saves: frozenset[int] = frozenset()) -> Planned:
        schedule = Schedule(
            program,
            hops,
            bounds,
            gradients=gradients,
            folded=folded,
            saves=saves,
            order=order,
            selects=selects,
            visits=visits,
            sizes=block_sizes,
        )
        plan = _placed(
            schedule, bounds, budget_bytes, trains=trains, ahead=not same_memory, memory_policy=memory_policy
        )
        return Planned(program, schedule, plan)

    @cache
    def whole() -> Planned:
        found = placed(False, visits or Visits())
        if visits is None and POLICIES[order].has_strips and (strips := _strips(found)):
            with suppress(BudgetError):
                found = min(found, placed(False, strips), key=lambda each: each.plan.moved_bytes)
        return found

    def picking() -> Planned:
        # As without picking: how few rows are worth it is measured, and sums must not depend on that.
        known = visits or Visits()
        with suppress(BudgetError):
            known = whole().schedule.visits
        return placed(True, known)

    found = cheaper(whole, picking, hops, selection)
    if not trains:
        return found
    again = partial(placed, found.schedule.selects, found.schedule.visits)
    every = frozenset(range(len(program.stages)))
    with suppress(BudgetError):
        saving = again(every)
        if saving.plan.moved_bytes <= found.plan.moved_bytes:
            return saving
    worth = frozenset(number for number in every if found.schedule.sizes.is_worth_keeping(number))
    if worth:
        with suppress(BudgetError):
            return again(worth)
    return found


@without_collections()
def revisited(found: Planned, visits: Visits) -> Planned:
    """The same epoch, with its chunks visited in another order.

    Args:
        found: an epoch with a backward.
        visits: in which order passes go over the intervals.
    """
    known = found.schedule
    schedule = Schedule(
        found.program,
        known.hops,
        found.plan.bounds,
        gradients=known.gradients,
        folded=known.folded,
        saves=known.saves,
        order=known.order,
        selects=known.selects,
        visits=visits,
        sizes=known.sizes,
    )
    before = found.plan
    plan = _placed(
        schedule, before.bounds, before.budget_bytes, ahead=before.ahead, memory_policy=before.memory_policy
    )
    return Planned(found.program, schedule, plan)


def dense_peak_bytes(program: ModelProgram, hops: Sequence[Topology], *, gradients: Gradients) -> int:
    """What an epoch in memory takes beside features and edges, which are there already.

    Nothing is computed again, and the result is whole.

    Args:
        program: the captured model.
        hops: the topologies that it walks.
        gradients: what the backward computes.
    """
    gathered = {number: topology_of(hop) for number, hop in gathered_hops(program, hops).items()}
    chunks = {
        number: HopSize.of(topology, {(0, 0): topology.num_edges} if topology.num_edges else {})
        for number, topology in gathered.items()
    }
    every = frozenset(range(len(program.stages)))
    bounds = (0, hops[0].num_dst)
    schedule = Schedule(program, chunks, bounds, gradients=gradients, saves=every)

    def bytes_of(block: Block) -> int:
        if block.kind == "edges":
            # The graph has them in one order.
            return schedule.sizes.of(block) - schedule.sizes.of(block._replace(name=CSC))
        return 0 if (block.kind, block.name) == ("value", "x") else schedule.sizes.of(block)

    on_host = [*schedule.initial(), *schedule.upstream()]
    steps = list(schedule.epoch())
    return place(steps, bytes_of=bytes_of, on_host=on_host, bounds=bounds, budget_bytes=UNLIMITED).peak_bytes


def _strips(found: Planned) -> Visits | None:
    """Strips of several columns, where they are of use and the budget has room for them."""
    steps = [each for each in found.plan.operations if isinstance(each, Step)]
    widths = strip_widths(steps, found.schedule.sizes.of, found.plan.budget_bytes, found.plan.num_intervals)
    return Visits(widths=widths) if widths else None


def cheaper(
    whole: Callable[[], Planned], picking: Callable[[], Planned], hops: Mapping[int, HopSize], selection: Selection
) -> Planned:
    """The plan that picks rows, or the one that does not.

    Args:
        whole: makes the one that does not.
        picking: makes the one that does.
        hops: the chunks.
        selection: of the rows that chunks need.
    Raises:
        BudgetError: a step needs more than the budget.
    """
    if not any(hop.needed for hop in hops.values()):
        return whole()
    if selection.is_forced:
        return picking()
    found = whole()
    with suppress(BudgetError):
        picked = picking()
        if _copied(picked.plan, selection) < _copied(found.plan, selection):
            return picked
    return found


def _copied(plan: Plan, selection: Selection) -> float:
    """What a plan's copies cost, in bytes of whole intervals."""
    return plan.moved_bytes + (selection.cost - 1) * plan.picked_bytes


def _placed(
    schedule: Schedule,
    bounds: Sequence[int],
    budget_bytes: int,
    *,
    trains: bool = True,
    ahead: bool,
    memory_policy: MemoryPolicy,
) -> Plan:
    return MEMORY_POLICIES[memory_policy](
        list(schedule.epoch() if trains else schedule.forward()),
        bytes_of=schedule.sizes.of,
        on_host=[*schedule.initial(), *(schedule.upstream() if trains else [])],
        bounds=bounds,
        budget_bytes=budget_bytes,
        lookahead=LOOKAHEAD if ahead else 0,
    )


def reads_in_place(budget_bytes: int, *, same_memory: bool) -> bool:
    """Whether edges and constants are read where they lie, and take no room; without a budget everything is, and counted."""
    return same_memory and budget_bytes < UNLIMITED

"""Plan an epoch of a captured model over a cut graph: its schedule, and which blocks lie in memory while its steps run.

The gathers that are the same in every epoch are planned by themselves, to run once before the first epoch.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from typing import Literal, NamedTuple

from sagann.compiler.model_program import ModelProgram
from sagann.graph.topology import Topology
from sagann.plan.dealing import EACH, Route, dealt, place_dealt
from sagann.plan.dynamic_program import place_by_program
from sagann.plan.gradients import Gradients
from sagann.plan.hops import CSC, HopSize, gathered_hops, topology_of
from sagann.plan.intervals import PartIntervals
from sagann.plan.residency import LOOKAHEAD, BudgetError, place
from sagann.plan.schedule import Schedule
from sagann.plan.segments import segmented
from sagann.plan.selection import NEVER, Selection
from sagann.plan.sizes import BlockSizes, constants_of_stages, plan_bytes
from sagann.plan.slices import in_slices
from sagann.plan.staying import PlaceWithin, placed_beside, with_staying
from sagann.plan.steps import DEVICE, UNLIMITED, Beside, Block, Move, Plan, Step
from sagann.plan.sweeps import COLUMN, Traversal, Walks, strip_widths
from sagann.plan.waits import waits_of

MemoryPolicy = Literal["belady", "dp"]
"""Which blocks the device keeps. belady: when room is needed, the block whose next use is farthest leaves; coming blocks are loaded ahead
(:mod:`sagann.plan.residency`). dp: a dynamic program looks for the plan that moves the fewest bytes (:mod:`sagann.plan.dynamic_program`)."""
PlacementPolicy = Callable[..., Plan]
"Places blocks: a function with the arguments of :func:`sagann.plan.residency.place`."
MEMORY_POLICIES: dict[MemoryPolicy, PlacementPolicy] = {"belady": place, "dp": place_by_program}
"The function of each policy."
_X = frozenset(["x"])


class Planned(NamedTuple):
    """A call of a streamed model: its steps and moves."""

    program: ModelProgram
    "The captured model."
    schedule: Schedule
    "Its steps, and the sizes of blocks."
    plan: Plan
    "Steps and moves within the budget."

    @property
    def received_bytes(self) -> int:
        """Bytes of the blocks that exchanges bring from other workers."""
        steps = [each for each in self.plan.operations if isinstance(each, Step)]
        return sum(self.schedule.sizes.content_of(block) for step in steps for block in step.receives)

    @property
    def disk_bytes(self) -> int:
        """Bytes of all blocks that are spilled: those of a call, those that other workers send, and those kept from call to call."""
        return self.plan.spilled_bytes + self.received_bytes + self.schedule.constant_bytes


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
    part: PartIntervals,
    budget_bytes: int,
    *,
    gradients: Gradients,
    trains: bool = True,
    folded: bool = False,
    walks: Walks = COLUMN,
    selection: Selection = NEVER,
    traversal: Traversal | None = None,
    memory_policy: MemoryPolicy = "belady",
    beside: Beside,
    has_mapped_x: bool = False,
    route: Route = EACH,
    staying: tuple[Move, ...] | None = None,
) -> Planned:
    """Plan an epoch.

    A stage saves what its gradient reads where this moves no more bytes than running the stage again, or where the copies take
    less time than that. Rows are picked for chunks where this costs less than moving whole intervals; chunks are then visited
    in the same order. All these choices compare Belady's plans, so the steps and their numbers do not depend on the memory policy.

    Args:
        part: intervals of a whole graph, or of a worker's part.
        budget_bytes: bytes for blocks, temporaries, and the plan's own objects where these are in the same memory.
        folded: whether the loss is computed inside the last stage.
        traversal: order of sweeps and strips; by default zigzag, in strips as wide as moves the fewest bytes.
        beside: memory where blocks lie that the device does not hold.
        has_mapped_x: whether features come from a mapped file or are computed, and are read by position; otherwise a processor reads them in place.
        route: way by which blocks reach the part's devices, where it has several. Blocks are placed by Belady's rule there.
        staying: blocks that stay in memory (:mod:`sagann.plan.staying`) as another plan has chosen, if the steps fit beside them; None to
            choose here.
    Raises:
        BudgetError: a step needs more than the budget.
    """
    if part.slice_lanes:
        program, gradients, part = in_slices(program, gradients, part)
    if part.undivided:
        gradients = gradients.recomputing()
    # Pages of a map belong to a file too.
    values = constants_of_stages(program) - (_X if has_mapped_x else frozenset())
    planner = _Planner(program, hops, part, gradients, budget_bytes, beside, values_in_place=values, route=route)
    turns = replace(traversal or Traversal(), num_devices=len(part.devices), num_heads=route.num_heads)
    first = Schedule(planner.sizes, folded=folded, walks=walks, traversal=turns)

    def placed(schedule: Schedule) -> Planned:
        steps = schedule.epoch() if trains else schedule.forward()
        return planner.placed(schedule, steps, [*schedule.initial(), *(schedule.upstream() if trains else [])])

    @cache
    def whole() -> Planned:
        found = placed(first)
        # Where the other ends are undivided, each pass reads them once anyway.
        if traversal is None and walks.has_strips and not part.undivided and (strips := _strips(found)):
            with suppress(BudgetError):
                found = min(found, placed(first.changed(traversal=strips)), key=lambda each: each.plan.moved_bytes)
        return found

    def picking() -> Planned:
        # The same order as without picking: rates are measured, and sums must not depend on measurements.
        known = first.traversal
        with suppress(BudgetError):
            known = whole().schedule.traversal
        return placed(first.changed(selects=True, traversal=known))

    found = planner.cheaper(whole, picking, selection)
    saving = _saving(found, placed, beside.flops_per_byte) if trains else found
    return planner.finished(saving, memory_policy, staying)


def _saving(found: Planned, placed: Callable[[Schedule], Planned], flops_per_byte: float) -> Planned:
    """The epoch with the stages that save what their gradients read, each on all intervals."""
    every = found.schedule.all_saves
    with suppress(BudgetError):
        saving = placed(found.schedule.changed(saves=every))
        if saving.plan.moved_bytes <= found.plan.moved_bytes:
            return saving
    sizes = found.schedule.sizes
    if worth := frozenset(at for at in every if sizes.is_worth_keeping(at[0], flops_per_byte)):
        with suppress(BudgetError):
            return placed(found.schedule.changed(saves=worth))
    return found


@without_collections()
def plan_constants(
    program: ModelProgram,
    hops: Mapping[int, HopSize],
    part: PartIntervals,
    budget_bytes: int,
    selection: Selection = NEVER,
    *,
    memory_policy: MemoryPolicy = "belady",
    beside: Beside,
) -> Planned:
    """Plan what is the same in every epoch (:attr:`Schedule.kept`); arguments are those of :func:`plan_epoch`."""
    part = replace(part.square, devices=(DEVICE,))
    planner = _Planner(program, hops, part, Gradients(program), budget_bytes, beside)

    def placed(*, selects: bool) -> Planned:
        schedule = Schedule(planner.sizes, selects=selects)
        kept = set(schedule.kept)
        return planner.placed(
            schedule, schedule.constants(), [block for block in schedule.initial() if block not in kept]
        )

    found = planner.cheaper(partial(placed, selects=False), partial(placed, selects=True), selection)
    return planner.finished(found, memory_policy, ())


class _Planner:
    """Places schedules over one chunk grid, within what the plan's own objects leave of a budget.

    Where blocks are read in place, edges and ``values_in_place`` are.
    """

    def __init__(
        self,
        program: ModelProgram,
        hops: Mapping[int, HopSize],
        part: PartIntervals,
        gradients: Gradients,
        budget_bytes: int,
        beside: Beside,
        *,
        values_in_place: frozenset[str] = frozenset(),
        route: Route = EACH,
    ) -> None:
        self.budget_bytes, self.beside, self.route = budget_bytes, beside, route
        in_place = beside.reads_in_place(budget_bytes)
        # Beside files, features that a caller has in memory are read there.
        others = _X if beside.counts_process and budget_bytes < UNLIMITED else frozenset()
        values = values_in_place if in_place else values_in_place & others
        self.sizes = BlockSizes(program, hops, part, gradients, edges_in_place=in_place, values_in_place=values)
        self.own_bytes = plan_bytes(program, hops, part, gradients, budget_bytes, beside)

    def placed(self, schedule: Schedule, steps: Iterable[Step], initial: Iterable[Block]) -> Planned:
        """The plan of Belady's rule."""
        room_bytes, ahead = self.budget_bytes - self.own_bytes, self.beside.copies_beside
        if not schedule.part.is_dealt:
            return _placed(schedule, list(steps), initial, room_bytes, place, ahead=ahead)
        policy = partial(place_dealt, route=self.route)
        return _placed(schedule, dealt(steps, schedule.part), initial, room_bytes, policy, ahead=ahead)

    def cheaper(
        self, whole: Callable[[], Planned], picking: Callable[[], Planned], selection: Selection
    ) -> Planned:
        """The plan that picks rows, or the plan that loads whole intervals."""
        try:
            if not any(hop.needed for hop in self.sizes.hops.values()):
                return whole()
            if selection.is_forced:
                return picking()
            found = whole()
            with suppress(BudgetError):
                picked = picking()
                if selection.cost_of(picked.plan) < selection.cost_of(found.plan):
                    return picked
            return found
        except BudgetError as error:
            raise error.beside(self.own_bytes, self.budget_bytes) from None

    def finished(self, found: Planned, memory_policy: MemoryPolicy, staying: tuple[Move, ...] | None) -> Planned:
        """Belady's plan as a policy places it: beside files with blocks that stay, and with waits where copies run beside steps."""
        plan, schedule, ahead = found.plan, found.schedule, self.beside.copies_beside
        steps = [each for each in plan.operations if isinstance(each, Step)]
        placed = partial(_placed, schedule, steps, plan.initial, ahead=ahead)

        def within(policy: PlacementPolicy) -> PlaceWithin:
            return lambda bytes_of, room_bytes: placed(room_bytes, policy, bytes_of=bytes_of).plan

        bytes_of = schedule.sizes.of
        if self.beside.counts_process and plan.budget_bytes < UNLIMITED and found.program.x_is_constant:
            with suppress(BudgetError):
                if staying is None:
                    plan = with_staying(plan, bytes_of, within(place))
                elif staying:
                    plan = placed_beside(staying, plan, bytes_of, within(place))
        if memory_policy != "belady":
            plan = placed_beside(plan.staying, found.plan, bytes_of, within(MEMORY_POLICIES[memory_policy]))
        waits = waits_of(plan.operations, plan.room_bytes, has_engines=self.beside.has_engines) if ahead else ()
        return found._replace(plan=segmented(replace(plan, waits=waits)))


@without_collections()
def replaced(found: Planned, policy: PlacementPolicy, *, ahead: bool) -> Planned:
    """The same steps of an epoch that Belady's rule placed, with the blocks that another policy keeps."""
    plan = found.plan
    steps = [each for each in plan.operations if isinstance(each, Step)]
    return _placed(found.schedule, steps, plan.initial, plan.budget_bytes, policy, ahead=ahead)


def dense_peak_bytes(
    program: ModelProgram, hops: Sequence[Topology], *, gradients: Gradients, trains: bool = True
) -> int:
    """Peak bytes of an epoch in memory, or of an evaluation, without features and edges, which are there already.

    Every stage of an epoch saves what its gradient reads, and the result is whole.
    """
    chunks = {}
    for number, hop in gathered_hops(program, hops).items():
        topology = topology_of(hop)
        chunks[number] = HopSize.of(topology, {(0, 0): topology.num_edges} if topology.num_edges else {})
    every = frozenset((number, 0) for number in range(len(program.stages)))
    part = PartIntervals.of_graph((0, hops[0].num_dst))
    schedule = Schedule(BlockSizes(program, chunks, part, gradients), saves=every)

    def bytes_of(block: Block) -> int:
        if block.kind == "edges":
            # The graph has the edges in one order.
            return schedule.sizes.of(block) - schedule.sizes.of(block._replace(name=CSC))
        return 0 if (block.kind, block.name) == ("value", "x") else schedule.sizes.of(block)

    initial = [*schedule.initial(), *(schedule.upstream() if trains else [])]
    steps = list(schedule.epoch() if trains else schedule.forward())
    return place(steps, bytes_of=bytes_of, initial=initial, bounds=part.bounds, budget_bytes=UNLIMITED).peak_bytes


def _strips(found: Planned) -> Traversal | None:
    """Strips of several columns, where these save loads and the budget has room for them."""
    steps = [each for each in found.plan.operations if isinstance(each, Step)]
    traversal = found.schedule.traversal
    num_intervals = math.ceil(len(found.schedule.intervals) / traversal.num_devices)
    widths = strip_widths(steps, found.schedule.sizes.of, found.plan.budget_bytes, num_intervals)
    return replace(traversal, widths=widths) if widths else None


def _placed(
    schedule: Schedule,
    steps: Sequence[Step],
    initial: Iterable[Block],
    budget_bytes: int,
    policy: PlacementPolicy,
    *,
    ahead: bool,
    bytes_of: Callable[[Block], int] | None = None,
) -> Planned:
    plan = policy(
        steps,
        bytes_of=bytes_of or schedule.sizes.of,
        initial=initial,
        bounds=schedule.part.bounds,
        budget_bytes=budget_bytes,
        lookahead=LOOKAHEAD if ahead else 0,
    )
    return Planned(schedule.program, schedule, plan)

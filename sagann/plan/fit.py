"""Fit: the fewest intervals with which every step of a captured model fits the budget, and how chunks are cut, from sizes alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

from sagann.compiler.model_program import ModelProgram
from sagann.compiler.slices import slice_lanes, widest_rows
from sagann.graph.topology import Topology
from sagann.kernels.edge.work import Grain
from sagann.plan.epoch import plan_epoch
from sagann.plan.gradients import Gradients, undivided_of
from sagann.plan.hops import HopSize, gathered_hops, hop_size, read_data, topology_of
from sagann.plan.intervals import CutPart, PartIntervals, cut_graph, equal_weights
from sagann.plan.residency import BudgetError
from sagann.plan.routes import seconds_of
from sagann.plan.schedule import Schedule
from sagann.plan.selection import NEVER, Selection, needed_rows
from sagann.plan.sizes import BlockSizes, constants_of_stages, needed_bytes, plan_bytes
from sagann.plan.slices import in_slices
from sagann.plan.steps import ALL, Beside, Step, uncut_ends
from sagann.plan.sweeps import COLUMN, Walks
from sagann.plan.work import StepWork

Shape = int | None
"How chunks are cut: None at both ends; 0 at one end; another number at one end, for slices of at most that many lanes."
SQUARE: Shape = None
WHOLE: Shape = 0
# Numbers of slices of the widest rows that are tried.
_NUM_SLICES = (2, 4, 8, 16, 32)

MOST_INTERVALS = 256
"Most intervals that are tried. An epoch has a step for each chunk of the grid, and steps on a finer grid do too little work."

USEFUL_INTERVALS = 16
"""Largest number of intervals to which a budget leads that an error offers. Every pass reads the rows of all intervals once for each
interval, so an epoch takes longer with more intervals."""

# Bytes of files that are copied in the time that a step takes to begin: a third of a millisecond at 3 GB/s.
_BYTES_A_STEP = 1 << 20
# Finer square grids take long to plan, and have far more steps than uncut ends.
_MOST_COMPARED = 32
# The search ends when the number of intervals has doubled this many times without saving at least two percent.
_MOST_IN_VAIN = 2
_WORTH_IT = 0.98
# Share of the seconds of uncut ends in which a square grid must run on a device, because it has far more operations: they take longer where
# epochs cannot be recorded.
_CLEARLY = 0.9


def fitted_intervals(
    program: ModelProgram,
    hops: Sequence[Topology],
    budget_bytes: int,
    *,
    gradients: Gradients,
    trains: bool = True,
    walks: Walks = COLUMN,
    beside: Beside,
    cut_part: CutPart = cut_graph,
    is_square: bool = False,
) -> PartIntervals:
    """The fewest intervals that leave room to load ahead, or else of the fewest that fit the budget.

    Where more than one is needed, the way to cut chunks is taken that costs least: rows that passes read at random may stay undivided
    (:mod:`sagann.plan.gradients`).

    The plan's own objects count where they lie in the memory of the budget. No room is left to load ahead where nothing is copied beside
    steps. The bounds of a model that is trained fit whether or not the loss is folded. No step needs more bytes than one on a chunk of the
    most edges between two intervals of the most vertices. ``cut_part`` cuts the sources of a worker's part. With ``is_square``, all chunks
    are cut at both ends, as in the papers.

    Raises:
        BudgetError: no number of intervals fits; the message names the least budget that one fits, and offers one that
            :data:`USEFUL_INTERVALS` or fewer fit.
    """
    # Features may lie in a mapped file, and chunks may be kept for picked rows. Both are copied then, so they count here.
    in_place = beside.reads_in_place(budget_bytes)
    values = constants_of_stages(program) - {"x"} if in_place else frozenset()
    undivided = frozenset() if is_square else undivided_of(program, gradients)

    @cache
    def part_of(count: int, shape: Shape) -> PartIntervals:
        part = cut_part(count, cutter(program, hops[0], is_square=shape is SQUARE))
        return part if shape is SQUARE else replace(part, undivided=undivided, slice_lanes=shape or 0)

    @cache
    def sizes_of(count: int, shape: Shape) -> dict[int, HopSize]:
        return hop_sizes(program, hops, part_of(count, shape), grain=beside.grain)

    @cache
    def form_of(shape: Shape) -> tuple[ModelProgram, Gradients, PartIntervals]:
        part = part_of(1, shape)
        return in_slices(program, gradients, part) if part.slice_lanes else (program, gradients, part)

    def own_bytes(count: int, shape: Shape) -> int:
        form, passes, like = form_of(shape)
        part = replace(part_of(count, shape), undivided=like.undivided)
        return plan_bytes(form, sizes_of(count, shape), part, passes, budget_bytes, beside)

    @cache
    def work(count: int, shape: Shape) -> list[tuple[list[Step], BlockSizes]]:
        form, passes, like = form_of(shape)
        part = replace(part_of(count, shape), undivided=like.undivided)
        found, few = largest_hops(part, sizes_of(count, shape), walks.telling), part.largest(walks.telling)
        once = Schedule(BlockSizes(form, found, few.square, passes), walks=walks)
        passes = passes if shape is SQUARE else passes.recomputing()
        read = BlockSizes(form, found, few, passes, values_in_place=values)
        # A model that is only evaluated has no loss. A folded loss would take several times the rows of the result.
        epochs = [Schedule(read, folded=folded, walks=walks) for folded in ([False, True] if trains else [False])]
        runs = [each.epoch() if trains else each.forward() for each in epochs]
        return [(list(once.constants()), once.sizes), *((list(steps), read) for steps in runs)]

    @cache
    def needed(count: int, *, shape: Shape, ahead: bool) -> int:
        most = max(needed_bytes(steps, read.of, ahead=ahead) for steps, read in work(count, shape))
        return own_bytes(count, shape) + most

    @cache
    def cost(count: int, shape: Shape) -> float:
        """Simulated seconds of an epoch on a device; beside a processor, the bytes that it copies, and would copy while its steps begin."""
        planned = plan_epoch(
            program,
            sizes_of(count, shape),
            part_of(count, shape),
            budget_bytes,
            gradients=gradients,
            trains=trains,
            folded=trains,
            walks=walks,
            beside=beside,
            has_mapped_x=beside.copies_beside,
        )
        if beside.machine is not None:
            seconds = seconds_of(planned, beside.machine, StepWork(planned.schedule))
            return seconds / _CLEARLY if shape is SQUARE else seconds
        steps = [each for each in planned.plan.operations if isinstance(each, Step)]
        return planned.plan.moved_bytes + len(steps) * _BYTES_A_STEP

    most = max(1, min(hops[0].num_src, MOST_INTERVALS))

    def fitting(shape: Shape, *, ahead: bool) -> tuple[int, bool]:
        """A number of intervals, and whether it fits."""
        wants = partial(needed, shape=shape, ahead=ahead)
        count = least_count(wants, budget_bytes, most)
        return count, wants(count) <= budget_bytes

    def in_few_slices(*, ahead: bool) -> list[tuple[int, Shape]]:
        """The cheapest number of intervals and width of slices that fit, if any do; slices are halved as long as that saves."""
        found: list[tuple[int, Shape]] = []
        # Several devices assemble undivided rows once.
        widest = 0 if part_of(1, WHOLE).is_dealt else widest_rows(program, gradients.recomputing().passes)
        widths = dict.fromkeys(slice_lanes(widest, each) for each in _NUM_SLICES)
        for lanes in (each for each in widths if each < widest):
            count, fits = fitting(lanes, ahead=ahead)
            if fits and found and cost(count, lanes) >= cost(*found[0]):
                break
            found = [(count, lanes)] if fits else found
        return found

    for ahead in [True, False] if beside.copies_beside else [False]:
        count, fits = fitting(SQUARE, ahead=ahead)
        found = [(count, SQUARE)] if fits else []
        if undivided and not part_of(1, SQUARE).exchanges and (count > 1 or not fits):
            uncut, uncut_fits = fitting(WHOLE, ahead=ahead)
            others = [(uncut, WHOLE)] if uncut_fits else in_few_slices(ahead=ahead)
            found = [*others, *(found if count <= _MOST_COMPARED or not others else [])]
        if found:
            return part_of(*(min(found, key=lambda each: cost(*each)) if len(found) > 1 else found[0]))
    roomy = partial(needed, shape=SQUARE, ahead=beside.copies_beside)
    offered_bytes = roomy(least_count(roomy, 0, min(most, USEFUL_INTERVALS)))
    alone = [(step, read) for steps, read in work(count, SQUARE) for step in steps]
    step, read = max(alone, key=lambda pair: needed_bytes(pair[:1], pair[1].of))
    num_intervals = part_of(count, SQUARE).num_own
    error = BudgetError.of_step(budget_bytes, step, read.of, num_intervals, offered_bytes=offered_bytes)
    raise error.beside(own_bytes(count, SQUARE), budget_bytes)


def cutter(
    program: ModelProgram, topology: Topology, *, is_square: bool = True
) -> Callable[[int], tuple[int, ...]]:
    """A function from a number of intervals to bounds between which all have about as many bytes, for chunks that are cut at both ends or
    at one.
    """
    forms = [form for name, form in program.forms.items() if name != "x" or not program.x_is_sparse]
    row = max(math.prod(form.shape) * form.dtype.itemsize for form in forms)
    edge = 2 * topology.indices.element_size()

    def bounds_of(count: int) -> tuple[int, ...]:
        # On a square grid an interval's in-edges are divided among as many chunks as there are intervals, and only one lies in memory.
        return equal_weights(topology.indptr, count, vertex=row * count if is_square else row, edge=edge)

    return bounds_of


def hop_sizes(
    program: ModelProgram,
    hops: Sequence[Topology],
    part: PartIntervals,
    selection: Selection = NEVER,
    grain: Grain | None = None,
) -> dict[int, HopSize]:
    """The sizes of the chunks that the program's gathers walk, by number of the hop."""
    found, read = {}, read_data(program)
    for number, hop in gathered_hops(program, hops).items():
        size = hop_size(hop, part.bounds).with_sides(part).with_data(topology_of(hop), read[number])
        found[number] = replace(size, needed=needed_rows(hop, part.bounds, selection), grain=grain)
    return found


def largest_hops(part: PartIntervals, hops: Mapping[int, HopSize], most: int) -> dict[int, HopSize]:
    """The sizes of hops whose chunks between at most ``most`` largest intervals (:meth:`PartIntervals.largest`) are as large as the largest chunk.

    Some step on these intervals needs at least as many bytes as any step of the whole grid. How many intervals that takes
    depends on the walk over the grid (:attr:`sagann.plan.sweeps.Walks.telling`).
    """
    few = part.largest(most)
    ends = {
        (False, False): [(src, dst) for src in few.sources for dst in few.own],
        (True, False): [(ALL, dst) for dst in few.own],
        (False, True): [(src, ALL) for src in few.own],
    }
    found = {}
    for number, hop in hops.items():
        largest: dict[tuple[bool, bool], int] = {}
        for at, count in hop.edges.items():
            uncut = uncut_ends(*at)
            largest[uncut] = max(largest.get(uncut, 0), count)
        edges = {at: count for uncut, count in largest.items() for at in ends[uncut]}
        found[number] = replace(hop, edges=edges)
    return found


def least_count(needed: Callable[[int], int], budget_bytes: int, most: int) -> int:
    """The least number of intervals, up to ``most``, that fits the budget, or else the one of those tried that needs least."""
    low, high, best, in_vain = 0, 1, 1, 0
    while needed(high) > budget_bytes:
        # Finer cuts do not help once the bytes that do not depend on P dominate.
        in_vain = in_vain + 1 if high > 1 and needed(high) > _WORTH_IT * needed(best) else 0
        best = min(best, high, key=needed)
        if high >= most or in_vain == _MOST_IN_VAIN:
            low, high = _around(best, needed, budget_bytes, most)
            break
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if needed(middle) <= budget_bytes:
            high = middle
        else:
            low = middle
    return high


def _around(best: int, needed: Callable[[int], int], budget_bytes: int, most: int) -> tuple[int, int]:
    """Two numbers beside the best power of two: the first needs more than the budget, and the second fits it.

    If no number that is tried fits, both are the number that needs least.
    """
    tried = [*range(max(1, best // 2), min(2 * best, most), max(1, best // 4)), min(2 * best, most)]
    for low, high in pairwise(tried):
        if needed(high) <= budget_bytes:
            return low, high
    least = min([best, *tried], key=needed)
    return least, least

"""Fit: the fewest intervals with which every step of a captured model fits the budget, from sizes alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Literal

from sagann.compiler.model_program import ModelProgram
from sagann.graph.topology import Topology
from sagann.kernels.edge.work import Grain
from sagann.plan.beside import Beside
from sagann.plan.gradients import Gradients
from sagann.plan.hops import CSC, NUMBERED, Hop, HopSize, gathered_hops, hop_size
from sagann.plan.intervals import equal_edges, equal_vertices, equal_weights, sizes
from sagann.plan.part_intervals import CutPart, PartIntervals, cut_graph
from sagann.plan.residency import BudgetError
from sagann.plan.schedule import Schedule
from sagann.plan.selection import NEVER, Selection, needed_rows
from sagann.plan.sizes import BlockSizes, constants_of_stages, needed_bytes, plan_bytes
from sagann.plan.steps import Step
from sagann.plan.sweeps import COLUMN, Walks

MOST_INTERVALS = 256
"Most intervals that are tried. An epoch has a step for each chunk of the grid, and steps on a finer grid do too little work."

USEFUL_INTERVALS = 16
"""Largest number of intervals to which a budget leads that an error offers. Every pass reads the rows of all intervals once for each
interval, so an epoch takes longer with more intervals."""

Cut = Literal["bytes", "edges", "vertices"]
"Quantity of which all intervals have about the same amount."

# The search ends when the number of intervals has doubled this many times without saving at least two percent.
_MOST_IN_VAIN = 2
_WORTH_IT = 0.98


def fitted_intervals(
    program: ModelProgram,
    hops: Sequence[Topology],
    budget_bytes: int,
    *,
    gradients: Gradients,
    trains: bool = True,
    cut: Cut = "bytes",
    walks: Walks = COLUMN,
    beside: Beside,
    cut_part: CutPart = cut_graph,
) -> PartIntervals:
    """The fewest intervals that leave room to load ahead, or else of the fewest that fit the budget.

    The plan's own objects count where they lie in the memory of the budget. No room is left to load ahead where nothing is
    copied beside steps. The bounds of a model that is trained fit whether or not the loss is folded. The bytes of a step are
    bounded by those of the largest chunk between two of the largest interval. ``cut_part`` cuts the sources of a worker's part.

    Raises:
        BudgetError: no number of intervals fits; the message names the least budget that one fits, and offers one that
            :data:`USEFUL_INTERVALS` or fewer fit.
    """
    cut_own = cutter(program, hops[0], cut)
    # Features may lie in a mapped file, and chunks may be kept for picked rows. Both are copied then, so they count here.
    in_place = beside.reads_in_place(budget_bytes)
    values = constants_of_stages(program) - {"x"} if in_place else frozenset()

    @cache
    def sizes_of(count: int) -> dict[int, HopSize]:
        return hop_sizes(program, hops, cut_part(count, cut_own).bounds, grain=beside.grain)

    def own_bytes(count: int) -> int:
        return plan_bytes(program, sizes_of(count), gradients, budget_bytes, beside)

    @cache
    def work(count: int) -> list[tuple[list[Step], BlockSizes]]:
        part = cut_part(count, cut_own).largest(walks.telling)
        found = largest_hops(part, sizes_of(count))
        once = Schedule(BlockSizes(program, found, part, gradients), walks=walks)
        read = BlockSizes(program, found, part, gradients, values_in_place=values)
        # A model that is only evaluated has no loss. A folded loss would take several times the rows of the result.
        epochs = [Schedule(read, folded=folded, walks=walks) for folded in ([False, True] if trains else [False])]
        runs = [each.epoch() if trains else each.forward() for each in epochs]
        return [(list(once.constants()), once.sizes), *((list(steps), read) for steps in runs)]

    @cache
    def needed(count: int, *, ahead: bool) -> int:
        return own_bytes(count) + max(needed_bytes(steps, read.of, ahead=ahead) for steps, read in work(count))

    most = max(1, min(hops[0].num_src, MOST_INTERVALS))
    for ahead in [True, False] if beside.copies_beside else [False]:
        count = least_count(partial(needed, ahead=ahead), budget_bytes, most)
        if needed(count, ahead=ahead) <= budget_bytes:
            return cut_part(count, cut_own)
    roomy = partial(needed, ahead=beside.copies_beside)
    offered_bytes = roomy(least_count(roomy, 0, min(most, USEFUL_INTERVALS)))
    alone = [(step, read) for steps, read in work(count) for step in steps]
    step, read = max(alone, key=lambda pair: needed_bytes(pair[:1], pair[1].of))
    error = BudgetError.of_step(budget_bytes, step, read.of, count, offered_bytes=offered_bytes)
    raise error.beside(own_bytes(count), budget_bytes)


def cutter(program: ModelProgram, topology: Topology, cut: Cut) -> Callable[[int], tuple[int, ...]]:
    """A function from a number of intervals to the bounds of a model's vertices."""
    if cut == "vertices":
        return partial(equal_vertices, topology.num_dst)
    if cut == "edges":
        return partial(equal_edges, topology.indptr)
    forms = [form for name, form in program.forms.items() if name != "x" or not program.x_is_sparse]
    row = max(math.prod(form.shape) * form.dtype.itemsize for form in forms)
    edge = 2 * topology.indices.element_size()

    def bounds_of(count: int) -> tuple[int, ...]:
        # An interval's in-edges are divided among as many chunks as there are intervals, and only one lies in memory.
        return equal_weights(topology.indptr, count, vertex=row * count, edge=edge)

    return bounds_of


def hop_sizes(
    program: ModelProgram,
    hops: Sequence[Topology],
    bounds: Sequence[int],
    selection: Selection = NEVER,
    grain: Grain | None = None,
) -> dict[int, HopSize]:
    """The sizes of the chunks that the program's gathers walk, by number of the hop."""
    return {
        number: replace(hop_size(hop, bounds), needed=needed_rows(hop, bounds, selection), grain=grain)
        for number, hop in gathered_hops(program, hops).items()
    }


def edges_bytes(hops: Iterable[Hop], bounds: Sequence[int], grain: Grain | None = None) -> int:
    """Bytes of the chunks of some hops, by destination and by source."""
    rows = sizes(tuple(bounds))
    return sum(
        size.chunk_bytes(rows, *at, form)
        for size in (replace(hop_size(hop, bounds), grain=grain) for hop in hops)
        for at in size.edges
        for form in (CSC, NUMBERED)
    )


def largest_hops(part: PartIntervals, hops: Mapping[int, HopSize]) -> dict[int, HopSize]:
    """The sizes of hops whose chunks between a few largest intervals (:meth:`PartIntervals.largest`) are as large as the largest chunk.

    Some step on these intervals needs at least as many bytes as any step of the whole grid. How many intervals that takes
    depends on the walk over the grid (:attr:`sagann.plan.sweeps.Walks.telling`).
    """
    at = [(src, dst) for src in part.sources for dst in part.own]
    return {
        number: replace(hop, edges=dict.fromkeys(at, max(hop.edges.values())) if hop.edges else {})
        for number, hop in hops.items()
    }


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

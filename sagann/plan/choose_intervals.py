"""Choose intervals: the fewest that fit a memory budget, for a captured model over its hops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Literal

from sagann.compiler.model_program import ModelProgram
from sagann.graph.topology import Topology
from sagann.kernels.edge.work import Grain
from sagann.plan.edges_of_type import Hop, gathered_hops
from sagann.plan.epoch import reads_in_place
from sagann.plan.fit import UnmetError, hop_size, largest_of, least_count, needed_bytes
from sagann.plan.gradients import Gradients
from sagann.plan.intervals import equal_edges, equal_vertices, equal_weights, sizes
from sagann.plan.orders import POLICIES, Order
from sagann.plan.residency import BudgetError
from sagann.plan.schedule import Schedule
from sagann.plan.selection import NEVER, Selection, needed_rows
from sagann.plan.sizes import CSC, NUMBERED, BlockSizes, HopSize, constants_of_stages
from sagann.plan.steps import Step

MOST_INTERVALS = 256
"Most intervals that a budget may lead to. An epoch has a step for each chunk of the grid; in a finer grid steps do too little work."

Cut = Literal["bytes", "edges", "vertices"]
"What intervals have equally many of."


def fitted_bounds(
    program: ModelProgram,
    hops: Sequence[Topology],
    budget_bytes: int,
    *,
    gradients: Gradients,
    trains: bool = True,
    cut: Cut = "bytes",
    order: Order = "column",
    grain: Grain | None = None,
    same_memory: bool,
) -> tuple[int, ...]:
    """The bounds of the fewest intervals that leave room to load ahead, or else of the fewest that fit the budget.

    A model that is trained fits whether or not the loss is folded. What steps take is bounded by that of the largest
    chunk between two of the largest interval.

    Args:
        program: the captured model.
        hops: the topologies that it walks.
        budget_bytes: of blocks and temporaries.
        gradients: what the backward computes.
        trains: whether there is a backward.
        cut: what intervals have equally many of.
        order: in which passes go through the chunk grid.
        grain: as of :attr:`HopSize.grain`.
        same_memory: as of :func:`sagann.plan.epoch.plan_epoch`; then no room is left to load ahead.
    Raises:
        BudgetError: no number of intervals fits; the message says by which budget one would.
    """
    bounds_of = cutter(program, hops[0], cut)

    # Chunks may turn out to be kept for picked rows, and features to be mapped from a file: then they are copied.
    in_place = reads_in_place(budget_bytes, same_memory=same_memory)
    values = constants_of_stages(program) - {"x"} if in_place else frozenset()

    @cache
    def work(count: int) -> list[tuple[list[Step], BlockSizes]]:
        bounds = bounds_of(count)
        sized = hop_sizes(program, hops, bounds, grain=grain)
        largest, found = largest_of(bounds, sized, POLICIES[order].telling)
        once = Schedule(program, found, largest, gradients=gradients, order=order)
        read = BlockSizes(program, found, sizes(largest), gradients, values_in_place=values)
        # A model that is only evaluated has no loss. A folded loss would take several times the rows of the result.
        epochs = [
            Schedule(program, found, largest, gradients=gradients, folded=folded, order=order, sizes=read)
            for folded in ([False, True] if trains else [False])
        ]
        runs = [each.epoch() if trains else each.forward() for each in epochs]
        return [(list(once.constants()), once.sizes), *((list(steps), read) for steps in runs)]

    def needed(count: int, *, ahead: bool) -> int:
        return max(needed_bytes(steps, read.of, ahead=ahead) for steps, read in work(count))

    most = max(1, min(hops[0].num_dst, MOST_INTERVALS))
    if not same_memory:
        with suppress(UnmetError):
            return bounds_of(least_count(partial(needed, ahead=True), budget_bytes, most))
    try:
        return bounds_of(least_count(partial(needed, ahead=False), budget_bytes, most))
    except UnmetError as unmet:
        alone = [(step, read) for steps, read in work(unmet.count) for step in steps]
        step, read = max(alone, key=lambda pair: needed_bytes(pair[:1], pair[1].of))
        raise BudgetError.of_step(budget_bytes, step, read.of, unmet.count) from None


def cutter(program: ModelProgram, topology: Topology, cut: Cut) -> Callable[[int], tuple[int, ...]]:
    """What gives the bounds of so many intervals.

    Args:
        program: the captured model.
        topology: the edges.
        cut: what intervals have equally many of.
    """
    if cut == "vertices":
        return partial(equal_vertices, topology.num_dst)
    if cut == "edges":
        return partial(equal_edges, topology.indptr)
    forms = [form for name, form in program.forms.items() if name != "x" or not program.x_is_sparse]
    row = max(math.prod(form.shape) * form.dtype.itemsize for form in forms)
    edge = 2 * topology.indices.element_size()

    def bounds_of(count: int) -> tuple[int, ...]:
        # Of an interval's in-edges, a chunk has one part of as many as there are intervals.
        return equal_weights(topology.indptr, count, vertex=row * count, edge=edge)

    return bounds_of


def hop_sizes(
    program: ModelProgram,
    hops: Sequence[Topology],
    bounds: Sequence[int],
    selection: Selection = NEVER,
    grain: Grain | None = None,
) -> dict[int, HopSize]:
    """The sizes of the chunks that the program's gathers go over, by numbers of hops.

    Args:
        program: the captured model.
        hops: the topologies that it walks.
        bounds: of the intervals.
        selection: of the rows that chunks need.
        grain: as of :attr:`HopSize.grain`.
    """
    return {
        number: replace(hop_size(hop, bounds), needed=needed_rows(hop, bounds, selection), grain=grain)
        for number, hop in gathered_hops(program, hops).items()
    }


def edges_bytes(hops: Iterable[Hop], bounds: Sequence[int]) -> int:
    """What the chunks of some hops take in both orders."""
    rows = sizes(tuple(bounds))
    return sum(
        size.chunk_bytes(rows, *at, form)
        for size in (hop_size(hop, bounds) for hop in hops)
        for at in size.edges
        for form in (CSC, NUMBERED)
    )

"""Fit: the fewest intervals with which every step of a captured model fits the budget, and how chunks are cut, from sizes alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Literal

from sagann.compiler.model_program import ModelProgram
from sagann.graph.topology import Topology
from sagann.kernels.edge.work import Grain
from sagann.kernels.memory import SMALLEST_BYTES
from sagann.plan.epoch import plan_epoch
from sagann.plan.gradients import Gradients, undivided_of
from sagann.plan.hops import HopSize, gathered_hops, hop_size
from sagann.plan.intervals import CutPart, PartIntervals, cut_graph, equal_weights
from sagann.plan.residency import BudgetError
from sagann.plan.schedule import Schedule
from sagann.plan.selection import NEVER, Selection, needed_rows
from sagann.plan.sizes import BlockSizes, constants_of_stages, needed_bytes, plan_bytes
from sagann.plan.steps import ALL, Beside, Block, BlockKind, Step, uncut_ends
from sagann.plan.sweeps import COLUMN, Walks

MOST_INTERVALS = 256
"Most intervals that are tried. An epoch has a step for each chunk of the grid, and steps on a finer grid do too little work."

USEFUL_INTERVALS = 16
"""Largest number of intervals to which a budget leads that an error offers. Every pass reads the rows of all intervals once for each
interval, so an epoch takes longer with more intervals."""

# Bytes that are copied in the time that a step takes to begin: a third of a millisecond at 3 GB/s, or at 55 GB/s to a device.
_BYTES_A_STEP, _BYTES_A_STEP_OF_DEVICE = 1 << 20, 16 << 20
_Shape = Literal["square", "whole", "pieces"]
_SMALL_SHARE = 16
"Undivided rows of so small a share of the budget lie whole; copies of their pieces would be too small."
_UNCUT: tuple[_Shape, ...] = ("whole", "pieces")
"Shapes in which what passes read at random lies undivided."
# Finer square grids take long to plan, and have far more steps than uncut ends.
_MOST_COMPARED = 32
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
    walks: Walks = COLUMN,
    beside: Beside,
    cut_part: CutPart = cut_graph,
    is_square: bool = False,
) -> PartIntervals:
    """The fewest intervals that leave room to load ahead, or else of the fewest that fit the budget.

    Where more than one is needed, what passes read at random lies undivided (:mod:`sagann.plan.gradients`) if that fits, and copies and
    begins less: in memory from where it is made, or made in pieces.

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
    def wide() -> dict[tuple[BlockKind, str], int]:
        """What takes more than a small share of the budget while it lies undivided, and its bytes."""
        sizes = BlockSizes(program, sizes_of(1, "whole"), part_of(1, "whole"), gradients.recomputing())
        found = {each: sizes.content_of(Block(*each, ALL)) for each in undivided}
        return {each: size for each, size in found.items() if size > budget_bytes // _SMALL_SHARE}

    @cache
    def part_of(count: int, shape: _Shape) -> PartIntervals:
        part = cut_part(count, cutter(program, hops[0], is_square=shape == "square"))
        if shape == "square":
            return part
        return replace(part, undivided=undivided, in_pieces=frozenset(wide() if shape == "pieces" else ()))

    @cache
    def sizes_of(count: int, shape: _Shape) -> dict[int, HopSize]:
        return hop_sizes(program, hops, part_of(count, shape), grain=beside.grain)

    def own_bytes(count: int, shape: _Shape) -> int:
        part = part_of(count, shape)
        return plan_bytes(program, sizes_of(count, shape), part, gradients, budget_bytes, beside)

    @cache
    def work(count: int, shape: _Shape) -> list[tuple[list[Step], BlockSizes]]:
        part = part_of(count, shape)
        found, few = largest_hops(part, sizes_of(count, shape), walks.telling), part.largest(walks.telling)
        once = Schedule(BlockSizes(program, found, few.square, gradients), walks=walks)
        passes = gradients if shape == "square" else gradients.recomputing()
        read = BlockSizes(program, found, few, passes, values_in_place=values)
        # A model that is only evaluated has no loss. A folded loss would take several times the rows of the result.
        epochs = [Schedule(read, folded=folded, walks=walks) for folded in ([False, True] if trains else [False])]
        runs = [each.epoch() if trains else each.forward() for each in epochs]
        return [(list(once.constants()), once.sizes), *((list(steps), read) for steps in runs)]

    @cache
    def needed(count: int, *, shape: _Shape, ahead: bool) -> int:
        most = max(needed_bytes(steps, read.of, ahead=ahead) for steps, read in work(count, shape))
        return own_bytes(count, shape) + most

    def cost(count: int, shape: _Shape) -> int:
        """Bytes that an epoch copies, and those that are copied in the time that its steps take to begin."""
        plan = plan_epoch(
            program,
            sizes_of(count, shape),
            part_of(count, shape),
            budget_bytes,
            gradients=gradients,
            trains=trains,
            folded=trains,
            walks=walks,
            beside=beside,
        ).plan
        num_steps = sum(isinstance(each, Step) for each in plan.operations)
        return plan.moved_bytes + num_steps * (_BYTES_A_STEP_OF_DEVICE if beside.has_engines else _BYTES_A_STEP)

    most = max(1, min(hops[0].num_src, MOST_INTERVALS))

    def fewest(shape: _Shape) -> tuple[int, bool]:
        """The number of intervals of a shape, and whether it fits."""
        for ahead in [True, False] if beside.copies_beside else [False]:
            of_shape = partial(needed, shape=shape, ahead=ahead)
            count = least_count(of_shape, budget_bytes, most)
            if of_shape(count) <= budget_bytes:
                return count, True
        return count, False

    count, fits = fewest("square")
    found: list[tuple[int, _Shape]] = []
    if undivided and not part_of(1, "square").exchanges and (count > 1 or not fits):
        for shape in _UNCUT:
            uncut, fits_uncut = fewest(shape)
            # The C library's heap, where small blocks lie, has gaps that no plan counts.
            is_coarse = shape == "whole" or uncut * SMALLEST_BYTES <= min(wide().values(), default=0)
            if fits_uncut and (is_coarse or not fits):
                found.append((uncut, shape))
    if fits and (count <= _MOST_COMPARED or not found):
        found.append((count, "square"))
    if found:
        return part_of(*(found[0] if len(found) == 1 else min(found, key=lambda each: cost(*each))))
    roomy = partial(needed, shape="square", ahead=beside.copies_beside)
    offered_bytes = roomy(least_count(roomy, 0, min(most, USEFUL_INTERVALS)))
    alone = [(step, read) for steps, read in work(count, "square") for step in steps]
    step, read = max(alone, key=lambda pair: needed_bytes(pair[:1], pair[1].of))
    error = BudgetError.of_step(budget_bytes, step, read.of, count, offered_bytes=offered_bytes)
    raise error.beside(own_bytes(count, "square"), budget_bytes)


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
    found = {}
    for number, hop in gathered_hops(program, hops).items():
        size = hop_size(hop, part.bounds).with_sides(part)
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

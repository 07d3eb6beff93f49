"""Orders: how an epoch's passes over the edges go through the chunk grid, as the papers compare them.

A pass accumulates chunks into states, one for each interval of its rows: of destinations in the forward, of sources in a
backward pass over CSR, of destinations in one over CSC. All orders have the same steps, and the same numbers but for rounding.
They differ in how long states and their results lie in memory. :mod:`sagann.plan.sweeps` has the direction of sweeps and the
width of strips.

    column: all chunks of one state, or of the states of a strip, then the stage of vertices on the result. Forward by columns
        of the grid (a column has the chunks into one destination interval), backward by rows.
    row: all chunks of one interval of other ends, each into a state of its own, so that the states of all intervals are begun.
        Forward by rows, backward by columns; a pass over CSC goes by columns in any case.
    stage: all chunks of one state, or of a strip, after those of another; the stage of vertices when all states are finished.

References:
    Ma et al., NGra, 2018, Sec. 3.1, 6.2 and Fig. 14: stage-based, and dest-order, which is "row" here.
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.1 and Fig. 16: column-row-oriented and row-column-oriented.
    We differ in that "row" too finishes a state and runs its stage after the state's last chunk, and that every order is
    placed in memory with the same foresight (:mod:`sagann.plan.residency`): a block moves only where there is no room.
    Gathers that are the same in every epoch go by columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from sagann.errors import require_choice
from sagann.plan.steps import Step
from sagann.plan.sweeps import PassKey, Sweeps

Order = Literal["column", "row", "stage"]
"Names of the orders."


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """The steps of a pass over the edges."""

    key: PassKey
    "Pass that the steps belong to."
    in_order: bool
    "Whether a state must meet its chunks in the order of their other ends, because the first one wins ties."
    chunk: Callable[[int, int], Iterator[Step]]
    "From an interval of rows and one of other ends to the step of their chunk, if it has edges."
    finish: Callable[[int], Iterator[Step]]
    "From an interval to the step that finishes its state."
    follow: Callable[[int], Iterator[Step]]
    "From an interval to the steps of the stage of vertices on the result."
    owns: Sequence[int] | None = None
    "Intervals of the pass's rows, in ascending order; None for all intervals."
    others: Sequence[int] | None = None
    "Intervals of the other ends, in ascending order of their ids in the graph; None for all intervals."
    late: Collection[int] = ()
    "Intervals of other ends whose rows may be under way when the pass begins."


def no_steps(interval: int) -> Iterator[Step]:
    """No step on an interval."""
    yield from ()


Walk = Callable[[Sweeps, Pass], Iterator[Step]]
"Puts the steps of a pass in order, by the next sweeps."


def _by_strips(sweeps: Sweeps, work: Pass) -> Iterator[Step]:
    strips = sweeps.strips(work.key, in_order=work.in_order, owns=work.owns, others=work.others, late=work.late)
    for strip in strips:
        for other in strip.others:
            for own in strip.owns:
                yield from work.chunk(own, other)
                if other == strip.others[-1]:
                    yield from work.finish(own)
                    yield from work.follow(own)


def _by_other_ends(sweeps: Sweeps, work: Pass) -> Iterator[Step]:
    # The grid lies on its side: a sweep goes over the other ends, and each of them meets the states one by one.
    rows = sweeps.strips(work.key)
    rows = tuple(sorted(rows)) if work.in_order else rows
    for (other,), owns in rows:
        for own in owns:
            yield from work.chunk(own, other)
            if (other,) == rows[-1].owns:
                yield from work.finish(own)
                yield from work.follow(own)


def _by_stages(sweeps: Sweeps, work: Pass) -> Iterator[Step]:
    yield from _by_strips(sweeps, replace(work, follow=no_steps))
    for own in sweeps.intervals():
        yield from work.follow(own)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How an order walks the chunk grid."""

    walk: Walk
    "Walk of the forward's gathers, and of the backward's passes over CSR."
    csc_walk: Walk
    "Walk of the backward's passes over CSC."
    has_strips: bool
    "Whether several intervals may have their states accumulated at the same time."
    telling: int
    "Number of intervals of the smallest grid in which states are read, begun and followed as in a larger one."


POLICIES: Mapping[Order, Policy] = {
    "column": Policy(walk=_by_strips, csc_walk=_by_strips, has_strips=True, telling=2),
    # A chunk between two chunks of begun states, and both ends different: the third and fourth of the second row.
    "row": Policy(walk=_by_other_ends, csc_walk=_by_strips, has_strips=False, telling=4),
    "stage": Policy(walk=_by_stages, csc_walk=_by_stages, has_strips=True, telling=2),
}
"The policy of each order."


def require_order(order: object) -> None:
    """Refuse an unknown order."""
    require_choice(order, get_args(Order), what="unknown order of the chunks", where="stream.order")

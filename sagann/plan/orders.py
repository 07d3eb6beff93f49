"""Orders: how an epoch's passes over the edges go through the chunk grid, as the papers compare them.

A pass accumulates chunks into states, one for every interval of its rows: destinations in the forward, sources in a
backward pass over CSR, destinations in one over CSC. Whatever the order, an epoch has the same steps, and its numbers are
the same but for rounding. What differs is how long states, and what follows from them, have to lie somewhere. In which
direction an order goes over intervals, and how many columns it takes on at a time, is said by :mod:`sagann.plan.sweeps`.

    column: all chunks of one state, or of the few of a strip, then the stage of vertices on what was gathered. Forward by
        columns of the grid (a column has the chunks into one destination interval), backward by rows.
    row: the other way round. All chunks of one interval of other ends, each into a state of its own, so that the states of
        all intervals are begun. Forward by rows, backward by columns; a pass over CSC goes by columns in any case.
    stage: all chunks of one state, or of a strip, after those of another, and the stage of vertices only when all is gathered.

References:
    Ma et al., NGra, 2018, Sec. 3.1, 6.2 and Fig. 14: stage-based, and dest-order, which is "row" here.
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.1 and Fig. 16: column-row-oriented and row-column-oriented.
    We differ in that a state is finished, and followed by its stage, with its last chunk in "row" too, and that every order
    is placed in memory with the same foresight (:mod:`sagann.plan.residency`): blocks move only where there is no room. What
    is the same in every epoch is gathered by columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sagann.errors import InputError
from sagann.plan.steps import Step
from sagann.plan.sweeps import PassKey, Strip, Sweeps

Order = Literal["column", "row", "stage"]
"By name."


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """The steps of a pass over the edges."""

    key: PassKey
    "Pass that the steps belong to."
    in_order: bool
    "Whether a state has to meet its chunks in the order of their other ends, because the first one wins ties."
    chunk: Callable[[int, int], Iterator[Step]]
    "Steps of the chunk between an interval of rows and one of other ends, if there is one."
    finish: Callable[[int], Iterator[Step]]
    "What an interval's state gives."
    follow: Callable[[int], Iterator[Step]]
    "What comes of that: the stage of vertices on the interval."


Walk = Callable[[Sweeps, Pass], Iterator[Step]]
"Puts the steps of a pass in order, by the sweeps that come next."


def _by_strips(sweeps: Sweeps, work: Pass) -> Iterator[Step]:
    for strip in _strips(sweeps, work):
        for other in strip.others:
            for own in strip.owns:
                yield from work.chunk(own, other)
                if other == strip.others[-1]:
                    yield from work.finish(own)
                    yield from work.follow(own)


def _by_other_ends(sweeps: Sweeps, work: Pass) -> Iterator[Step]:
    # The grid lies on its side here: a sweep goes over the other ends, and each of them meets the states one by one.
    rows = sweeps.strips(work.key)
    rows = tuple(sorted(rows)) if work.in_order else rows
    for (other,), owns in rows:
        for own in owns:
            yield from work.chunk(own, other)
            if (other,) == rows[-1].owns:
                yield from work.finish(own)
                yield from work.follow(own)


def _by_stages(sweeps: Sweeps, work: Pass) -> Iterator[Step]:
    for strip in _strips(sweeps, work):
        for other in strip.others:
            for own in strip.owns:
                yield from work.chunk(own, other)
                if other == strip.others[-1]:
                    yield from work.finish(own)
    for own in sweeps.intervals():
        yield from work.follow(own)


def _strips(sweeps: Sweeps, work: Pass) -> tuple[Strip, ...]:
    return sweeps.strips(work.key, in_order=work.in_order)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What an order does."""

    walk: Walk
    "Walk of the forward's gathers, and of the backward's passes over CSR."
    csc_walk: Walk
    "Walk of the backward's passes over CSC."
    has_strips: bool
    "Whether states of several intervals may be accumulated at the same time, instead of one after the other."
    telling: int
    "Intervals of the least grid in which states are read, begun and followed as in any larger one."


POLICIES: Mapping[Order, Policy] = {
    "column": Policy(walk=_by_strips, csc_walk=_by_strips, has_strips=True, telling=2),
    # A chunk between two chunks of begun states, and both ends different: the third and fourth of the second row.
    "row": Policy(walk=_by_other_ends, csc_walk=_by_strips, has_strips=False, telling=4),
    "stage": Policy(walk=_by_stages, csc_walk=_by_stages, has_strips=True, telling=2),
}
"What each order does."


def require_order(order: object) -> None:
    """Check an order's name.

    Raises:
        InputError: there is none of that name.
    """
    if order not in get_args(Order):
        raise InputError(
            "unknown order of the chunks",
            value=f"{order!r}, expected one of {', '.join(get_args(Order))}",
            where="stream.order",
            fix="Choose one of these.",
        )

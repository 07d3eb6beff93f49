"""Sweeps: in which order an epoch's sweeps go over the intervals, and passes over the chunks of each.

A pass accumulates chunks into states, one for each interval of its rows: of destinations in the forward, of sources in a backward pass over
CSR, of destinations in one over CSC. It goes by columns: all chunks of one state, or of the states of a strip, then the stage of vertices
on the result.

An epoch sweeps over the intervals again and again: once for a stage of vertices, strip by strip for a pass over the edges. A
strip is a few neighbouring intervals of the pass's rows whose states are accumulated at the same time, so that an interval of
other ends is loaded once for all of them. The papers have strips of one. :mod:`sagann.plan.strips` chooses their width.

By default sweeps zigzag: each begins with the interval where the one before ended, and each strip with the other ends where
the strip before ended, because these lie in memory. Sums do not depend on that but for rounding. Where the first chunk wins
ties, as of extrema, the chunks of a strip come in ascending order.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.1: every source chunk is loaded once for each column. Sec. 3.2 cuts sources
    finer than destinations, so that copies overlap "without increasing the total I/O amount". Strips of k columns of a grid
    that is k times as fine do the same. NGra, 2018, Sec. 3.1: column order forward, row order backward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sagann.plan.steps import Step

Direction = Literal["ascending", "zigzag"]
"Direction of the sweeps."


class PassKey(NamedTuple):
    """A pass over the edges."""

    kind: Literal["gather", "gather_grad"]
    "Kind of the pass's steps."
    number: int
    "Number of the gather."
    backward_pass: int = 0
    "Number of the pass within the gather's backward, counted from 1; 0 for the forward."


class Strip(NamedTuple):
    """Intervals of a pass that are processed together."""

    owns: tuple[int, ...]
    "Intervals of the pass's rows, in order."
    others: tuple[int, ...]
    "Intervals of the other ends, in the order in which their chunks are visited."


@dataclass(frozen=True, kw_only=True, slots=True)
class Traversal:
    """Directions of sweeps, and width and order of strips.

    Example:
        >>> sweeps = Sweeps(Traversal(widths={PassKey("gather", 0): 2}), num_intervals=3)
        >>> sweeps.intervals()
        (0, 1, 2)
        >>> sweeps.strips(PassKey("gather", 0))
        (Strip(owns=(2, 1), others=(2, 1, 0)), Strip(owns=(0,), others=(0, 1, 2)))
    """

    direction: Direction = "zigzag"
    "Direction of sweeps, and of the chunks from strip to strip."
    widths: Mapping[PassKey, int] = field(default_factory=dict)
    "Number of intervals in a strip, by pass; 1 for other passes."
    refined: Mapping[tuple[PassKey, int], tuple[int, ...]] = field(default_factory=dict)
    "By pass and number of the strip, an order of its chunks that replaces the default."


class Sweeps:
    """The sweeps of an epoch, one after the other."""

    def __init__(self, traversal: Traversal, num_intervals: int) -> None:
        self._visits = traversal
        self._ascending = tuple(range(num_intervals))
        self._goes_down = False

    def over(self, intervals: Sequence[int]) -> tuple[int, ...]:
        """Some intervals in the order of the next sweep."""
        found = tuple(intervals)[::-1] if self._goes_down else tuple(intervals)
        self._goes_down = self._visits.direction == "zigzag" and not self._goes_down
        return found

    def intervals(self) -> tuple[int, ...]:
        """The intervals of the next sweep, in order."""
        return self.over(self._ascending)

    def strips(
        self,
        key: PassKey,
        *,
        in_order: bool = False,
        owns: Sequence[int] | None = None,
        others: Sequence[int] | None = None,
        late: Collection[int] = (),
    ) -> tuple[Strip, ...]:
        """The strips of the next sweep; the chunks of each come in ascending order where they must.

        ``owns`` and ``others`` are the intervals of the pass's rows and of the other ends, in ascending order, by default all. The first
        strip visits the ``late`` other ends last, unless ``in_order`` or a refined order says otherwise.
        """
        ascending = self._ascending if others is None else tuple(others)
        along = ascending[::-1] if self._goes_down else ascending
        owns = self.over(self._ascending if owns is None else owns)
        turned = along if self._visits.direction == "ascending" else along[::-1]
        width = self._visits.widths.get(key, 1)
        strips = []
        for number, begin in enumerate(range(0, len(owns), width)):
            visited = turned if number % 2 else along
            if late and not number:
                visited = tuple(sorted(visited, key=late.__contains__))
            visited = (
                ascending if in_order or len(ascending) == 1 else self._visits.refined.get((key, number), visited)
            )
            strips.append(Strip(owns=owns[begin : begin + width], others=visited))
        return tuple(strips)


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
    owns: Sequence[int]
    "Intervals of the pass's rows, in ascending order."
    others: Sequence[int]
    "Intervals of the other ends, in ascending order of their ids in the graph."
    late: Collection[int] = ()
    "Intervals of other ends whose rows may be under way when the pass begins."


def no_steps(interval: int) -> Iterator[Step]:
    """No step on an interval."""
    yield from ()


def by_strips(sweeps: Sweeps, work: Pass) -> Iterator[Step]:
    """The steps of a pass, strip by strip."""
    strips = sweeps.strips(work.key, in_order=work.in_order, owns=work.owns, others=work.others, late=work.late)
    for strip in strips:
        for other in strip.others:
            for own in strip.owns:
                yield from work.chunk(own, other)
                if other == strip.others[-1]:
                    yield from work.finish(own)
                    yield from work.follow(own)


@dataclass(frozen=True, kw_only=True, slots=True)
class Walks:
    """How the passes of an epoch go over the chunk grid. The papers compare further ways (``bench/papers/rivals.py``)."""

    walk: Callable[[Sweeps, Pass], Iterator[Step]]
    "Puts the steps of the forward's gathers, and of the backward's passes over CSR, in order, by the next sweeps."
    csc_walk: Callable[[Sweeps, Pass], Iterator[Step]]
    "The same for the backward's passes over CSC."
    has_strips: bool
    "Whether several intervals may have their states accumulated at the same time."
    telling: int
    "Number of intervals of the smallest grid in which states are read, begun and followed as in a larger one."


COLUMN = Walks(walk=by_strips, csc_walk=by_strips, has_strips=True, telling=2)
"All chunks of one state, or of the states of a strip, then the stage of vertices on the result."

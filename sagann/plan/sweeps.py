"""Sweeps: in which order an epoch's sweeps go over the intervals, and passes over the chunks of each.

A pass accumulates chunks into states, one for each interval of its rows: of destinations in the forward, of sources in a backward pass over
CSR, of destinations in one over CSC. It goes by columns: all chunks of one state, or of the states of a strip, then the stage of vertices
on the result.

An epoch sweeps over the intervals again and again: once for a stage of vertices, strip by strip for a pass over the edges. A
strip is a few neighbouring intervals of the pass's rows whose states are accumulated at the same time, so that an interval of
other ends is loaded once for all of them. The papers have strips of one. The states and rows of a strip take
memory in which the blocks of other ends could stay, so :func:`strip_widths` chooses the width that needs the fewest loads.

By default sweeps zigzag: each begins with the interval where the one before ended, and each strip with the other ends where
the strip before ended, because these lie in memory. Sums do not depend on that but for rounding. Where the first chunk wins
ties, as of extrema, the chunks of a strip come in ascending order.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.1: every source chunk is loaded once for each column. Sec. 3.2 cuts sources
    finer than destinations, so that copies overlap "without increasing the total I/O amount". Strips of k columns of a grid
    that is k times as fine do the same. NGra, 2018, Sec. 3.1: column order forward, row order backward. Wolf and Lam, A data
    locality optimizing algorithm, PLDI 1991: tiling of loops.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sagann.plan.sizes import needed_bytes
from sagann.plan.steps import Block, Step

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
    num_devices: int = 1
    "Number of devices that intervals are dealt to in turn. A strip has its width of intervals for each of them."
    num_heads: int = 1
    "Number of groups of devices whose strips begin each round of other ends, one for each device, at another place."


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
        width = self._visits.widths.get(key, 1) * self._visits.num_devices
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

    def visits(self, strip: Strip, *, in_order: bool = False) -> Iterator[tuple[int, int, bool]]:
        """The chunks of a strip in order: intervals of rows and of other ends, and whether the chunk is the last one of its rows.

        Of the devices of a group, each begins one chunk after the one before it: it copies other ends from there. A round has a block of
        other ends for each device, and a group takes the first ones, which its own head loads, then those of the group before it, and so on.

        References:
            Ma et al., NGra, 2018, Sec. 4.2 and figure 8; Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.3 and figure 8.
        """
        count, heads = self._visits.num_devices, self._visits.num_heads if not in_order else 1
        size = count // heads
        orders = [_turned(strip.others, group, heads, size) for group in range(heads)]
        owns = sorted(strip.owns, key=lambda own: own % count)
        last = len(strip.others) - 1
        for turn in range(len(strip.others) + (size - 1 if last else 0)):
            for own in owns:
                at = turn - (own % count % size if last else 0)
                if 0 <= at <= last:
                    yield own, orders[own % count // size][at], at == last


def _turned(others: Sequence[int], group: int, heads: int, size: int) -> list[int]:
    """The order in which a group of devices visits other ends."""
    rounds = [others[begin : begin + heads * size] for begin in range(0, len(others), heads * size)]
    turns = [(group - turn) % heads * size for turn in range(heads)]
    return [other for each in rounds for begin in turns for other in each[begin : begin + size]]


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
        for own, other, is_last in sweeps.visits(strip, in_order=work.in_order):
            yield from work.chunk(own, other)
            if is_last:
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


def strip_widths(
    steps: Sequence[Step], bytes_of: Callable[[Block], int], budget_bytes: int, num_intervals: int
) -> Mapping[PassKey, int]:
    """The width of each pass's strips that needs the fewest loads; passes with strips of one are left out.

    ``steps`` are those of an epoch in column order, with strips of one interval.
    """
    found = {key: work.width(budget_bytes, num_intervals) for key, work in _passes(steps, bytes_of).items()}
    return {key: width for key, width in found.items() if width > 1}


@dataclass(slots=True)
class _PassSize:
    """Bytes of the blocks of a pass."""

    owns: dict[int, int] = field(default_factory=dict)
    "Bytes of the state and of the row blocks, by interval of the pass's rows."
    others: dict[int, int] = field(default_factory=dict)
    "Bytes of the blocks of other ends, by their interval."
    chunk: int = 0
    "Peak bytes of a chunk's edges, the gradients at its edges, and temporaries."
    follow: int = 0
    "Peak bytes of a step that comes between the chunks of two intervals."

    def add(self, step: Step, own: int, other: int, bytes_of: Callable[[Block], int]) -> None:
        """Add the blocks of a chunk's step."""
        of_own, of_other, of_chunk = 0, 0, step.temporary_bytes
        for block in step.blocks:
            if block.kind in ("edges", "edge_grad"):
                of_chunk += bytes_of(block)
            elif block.interval == own:
                of_own += bytes_of(block)
            else:
                of_other += bytes_of(block)
        self.chunk = max(self.chunk, of_chunk)
        # In a chunk on the diagonal, own and other blocks look alike.
        if own != other:
            self.owns[own] = max(self.owns.get(own, 0), of_own)
            self.others[other] = max(self.others.get(other, 0), of_other)

    def width(self, budget_bytes: int, num_intervals: int) -> int:
        """The smallest width with the fewest loads."""
        own, other = max(self.owns.values(), default=0), max(self.others.values(), default=0)
        best, least = 1, math.inf
        for width in range(1, num_intervals + 1):
            # While a chunk is computed, the next one is loaded.
            walking = width * own + 2 * (other + self.chunk)
            following = (width - 1) * own + self.follow
            if width > 1 and max(walking, following) > budget_bytes:
                break
            count = math.ceil(num_intervals / width)
            staying = max(0, budget_bytes - walking)
            loads = (count - 1) * max(0, sum(self.others.values()) - staying)
            if loads < least:
                # The last strip is about as wide as the others.
                best, least = math.ceil(num_intervals / count), loads
        return best


def chunk_ends(step: Step) -> tuple[PassKey, int, int] | None:
    """The pass of a chunk's step, the interval of its rows, and the interval of its other ends.

    None for other steps, and for a pass that has no rows of its own because it only leaves gradients for the next pass.
    """
    states = [block.interval for block in step.writes if block.kind == "state"]
    if step.kind not in ("gather", "gather_grad") or not states:
        return None
    (own,) = states
    other = step.dst_interval if own == step.interval else step.interval
    return PassKey(step.kind, step.number, step.backward_pass), own, other


def _passes(steps: Sequence[Step], bytes_of: Callable[[Block], int]) -> Mapping[PassKey, _PassSize]:
    found: defaultdict[PassKey, _PassSize] = defaultdict(_PassSize)
    between: list[Step] = []
    for step in steps:
        ends = chunk_ends(step)
        if ends is None:
            between.append(step)
            continue
        key, own, other = ends
        work = found[key]
        if between and work.owns:
            work.follow = max(work.follow, needed_bytes(between, bytes_of))
        between.clear()
        work.add(step, own, other, bytes_of)
    return found

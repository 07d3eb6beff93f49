"""Traversal: in which order an epoch's sweeps go over the intervals, and passes over the chunks of each.

An epoch sweeps over the intervals again and again: for a stage of vertices once, for a pass over the edges strip by strip. A
strip is a few neighbouring intervals of the pass's own rows, whose states are accumulated at the same time: each interval
of other ends comes once for all of them, not once for each. A strip of one is what the papers do; how wide strips
may be is what :mod:`sagann.plan.strips` says.

By default sweeps zigzag: each begins with the interval that the one before ended with, and each strip with the other ends
that the strip before ended with, because these lie in memory. Sums do not depend on that but for rounding. Where ties
are won by the chunk that comes first, as of extrema, a strip's chunks come in ascending order all the same.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.1: every source chunk is loaded once for each column. Sec. 3.2 cuts sources
    finer than destinations, so that copies overlap "without increasing the total I/O amount": strips of k columns of a
    grid that is k times as fine are that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Direction = Literal["ascending", "zigzag"]
"By name."


class PassKey(NamedTuple):
    """A pass over the edges."""

    kind: Literal["gather", "gather_grad"]
    "Kind of the pass's steps."
    number: int
    "Number of the gather."
    part: int = 0
    "Number of the pass within the gather's backward."


class Strip(NamedTuple):
    """Intervals of a pass that go together."""

    owns: tuple[int, ...]
    "Intervals of the pass's rows, in order."
    others: tuple[int, ...]
    "Intervals of the other ends, in the order in which their chunks are visited."


@dataclass(frozen=True, kw_only=True, slots=True)
class Traversal:
    """A policy of visiting.

    Example:
        >>> sweeps = Traversal(widths={PassKey("gather", 0): 2}).sweeps(3)
        >>> sweeps.intervals()
        (0, 1, 2)
        >>> sweeps.strips(PassKey("gather", 0))
        (Strip(owns=(2, 1), others=(2, 1, 0)), Strip(owns=(0,), others=(0, 1, 2)))
    """

    direction: Direction = "zigzag"
    "Direction of sweeps, and of the chunks of a strip."
    widths: Mapping[PassKey, int] = field(default_factory=dict)
    "Number of intervals in a strip, by pass; 1 for passes that are not named."
    refined: Mapping[tuple[PassKey, int], tuple[int, ...]] = field(default_factory=dict)
    "Order in which the chunks of a strip are visited instead, by pass and number of the strip."

    def sweeps(self, num_intervals: int) -> Sweeps:
        """The sweeps of an epoch over so many intervals."""
        return Sweeps(self, num_intervals)


class Sweeps:
    """The sweeps of an epoch, one after the other.

    Args:
        traversal: the policy.
        num_intervals: P.
    """

    def __init__(self, traversal: Traversal, num_intervals: int) -> None:
        self._visits = traversal
        self._ascending = tuple(range(num_intervals))
        self._goes_down = False

    def intervals(self) -> tuple[int, ...]:
        """The intervals in the order of the next sweep."""
        found = self._ascending[::-1] if self._goes_down else self._ascending
        self._goes_down = self._visits.direction == "zigzag" and not self._goes_down
        return found

    def strips(self, key: PassKey, *, in_order: bool = False) -> tuple[Strip, ...]:
        """The strips of the next sweep.

        Args:
            key: the pass.
            in_order: whether the chunks of a strip have to come in ascending order.
        """
        owns = self.intervals()
        turned = owns if self._visits.direction == "ascending" else owns[::-1]
        width = self._visits.widths.get(key, 1)
        strips = []
        for number, begin in enumerate(range(0, len(owns), width)):
            others = turned if number % 2 else owns
            others = self._ascending if in_order else self._visits.refined.get((key, number), others)
            strips.append(Strip(owns=owns[begin : begin + width], others=others))
        return tuple(strips)

"""Intervals: where the range of vertex ids is cut; those of a worker's part, and how many rows of each the other workers need.

The sources of a part are the worker's own vertices, then the halo (:mod:`sagann.partition.halo`). Intervals of own vertices and
of the halo are apart, and come in the same order, so the own ones are as in one process. An interval of the halo has vertices of
one owner. A whole graph is a part without a halo, whose rows nobody else needs.

Rows that edges read at random may lie undivided: in one block with the rows of all intervals, which stages make and read interval by interval.
A pass over the edges then has a chunk for each interval of its own rows, and reads no row twice (:mod:`sagann.plan.gradients`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from torch import Tensor

from sagann.errors import InputError
from sagann.plan.steps import ALL, DEVICE


def equal_vertices(num_vertices: int, count: int) -> tuple[int, ...]:
    """The bounds of ``count`` intervals with as many vertices each, give or take one.

    Returns:
        ``count + 1`` ids that do not decrease, from 0 to ``num_vertices``.
    Example:
        >>> equal_vertices(10, 3)
        (0, 3, 6, 10)
    """
    _check_count(count)
    return tuple(num_vertices * index // count for index in range(count + 1))


def equal_weights(indptr: Tensor, count: int, *, vertex: int, edge: int) -> tuple[int, ...]:
    """The bounds of ``count`` intervals of about the same weight: ``vertex`` for each, and ``edge`` for each in-edge of CSC offsets.

    References:
        Ma et al., NGra, 2018, Sec. 3.1, numbers vertices anew so that chunks have equally many edges. We cut the ids, which moves no
        vertex.
    Example:
        >>> import torch
        >>> equal_weights(torch.tensor([0, 6, 7, 8, 12]), 2, vertex=10, edge=1)
        (0, 2, 4)
    """
    _check_count(count)
    num_vertices = len(indptr) - 1

    def weight(bound: int) -> int:
        return vertex * bound + edge * int(indptr[bound])

    total = weight(num_vertices)
    inner = [bisect_left(range(num_vertices), total * index // count, key=weight) for index in range(1, count)]
    return (0, *inner, num_vertices)


def num_destinations(bounds: Sequence[int], num_dst: int) -> int:
    """Number of the intervals whose vertices are destinations: the first ones. Intervals of other sources are not empty.

    Example:
        >>> num_destinations((0, 3, 5, 9), 5), num_destinations((0, 3, 5, 5), 5)
        (2, 3)
    """
    return bisect_right(bounds, num_dst) - 1


def sizes(bounds: tuple[int, ...]) -> list[int]:
    """Number of vertices of each interval."""
    return [last - first for first, last in pairwise(bounds)]


def _check_count(count: int) -> None:
    if count < 1:
        raise InputError(
            f"vertices cannot be cut into that few intervals: {count}, at least 1 (in intervals)",
            hint="Pass a positive number.",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PartIntervals:
    """Intervals of a worker's sources.

    Example:
        >>> part = PartIntervals(bounds=(0, 3, 6, 8, 9), num_own=2, owners=(0, 2), rank=1)
        >>> part.own, part.halo, part.sources
        (range(0, 2), range(2, 4), (2, 0, 1, 3))
    """

    bounds: tuple[int, ...]
    "Bounds of the own intervals, and of those of the halo."
    num_own: int
    "Number of intervals of own vertices."
    owners: tuple[int, ...] = ()
    "Rank of the owner of each interval of the halo."
    rank: int = 0
    "Rank of the worker."
    sent: Mapping[tuple[int, int], int] = field(default_factory=dict)
    "Number of rows of an own interval that another worker needs, where it needs any, by interval and rank."
    num_workers: int = 1
    "Number of workers."
    undivided: frozenset[tuple[str, str]] = frozenset()
    "Kinds and names of the blocks that have the rows of all own vertices; only where there are no other workers."
    slice_lanes: int = 0
    """Largest number of lanes that a gather keeps undivided; gathers of wider rows are cut into slices (:mod:`sagann.compiler.slices`), whose
    undivided rows are assembled from the intervals before each pass. 0: nothing is cut, and undivided rows are written in place."""
    num_in_all: int | None = None
    "Number of rows of an undivided block; by default as many as all intervals have."
    devices: tuple[str, ...] = (DEVICE,)
    """Devices to which the intervals are dealt in turn. Each sums losses and gradients of parameters over its intervals, and these sums are added
    in the order given here. So one device, named as often as there are others elsewhere, has the same bits as they have."""

    @classmethod
    def of_graph(cls, bounds: Sequence[int]) -> PartIntervals:
        """The intervals of a whole graph."""
        return cls(bounds=tuple(bounds), num_own=len(bounds) - 1)

    @property
    def square(self) -> PartIntervals:
        """The same intervals, where nothing lies undivided and all chunks are cut at both ends."""
        return replace(self, undivided=frozenset(), slice_lanes=0)

    @property
    def is_dealt(self) -> bool:
        """Whether the intervals are dealt to devices."""
        return len(self.devices) > 1

    def place_of(self, interval: int) -> int:
        """Place of an interval's device among the devices."""
        return interval % len(self.devices) if interval >= 0 else 0

    @property
    def rows(self) -> Mapping[int, int]:
        """Number of vertices of each interval, and of all own ones."""
        num_in_all = self.num_vertices if self.num_in_all is None else self.num_in_all
        return {**dict(enumerate(sizes(self.bounds))), ALL: num_in_all}

    def holding(self, kind: str, name: str, interval: int) -> int:
        """The number of the block in which a step leaves an interval's rows of a kind and name: the interval's own, or :data:`ALL`."""
        is_assembled = self.is_dealt or self.slice_lanes > 0
        return ALL if (kind, name) in self.undivided and not is_assembled else interval

    @property
    def own(self) -> range:
        """Numbers of the intervals of own vertices."""
        return range(self.num_own)

    @property
    def halo(self) -> range:
        """Numbers of the intervals of the halo."""
        return range(self.num_own, len(self.bounds) - 1)

    @property
    def num_vertices(self) -> int:
        """Number of own vertices."""
        return self.bounds[self.num_own]

    @property
    def exchanges(self) -> bool:
        """Whether there are other workers. All of them take part in every exchange, also where none of their rows travels."""
        return self.num_workers > 1

    @property
    def sources(self) -> tuple[int, ...]:
        """Numbers of all intervals, by ascending ids of their vertices in the graph."""
        before = [number for number, owner in zip(self.halo, self.owners, strict=True) if owner < self.rank]
        return (*before, *self.own, *self.halo[len(before) :])

    def sent_by(self, interval: int) -> list[int]:
        """Ranks of the workers that need rows of an own interval."""
        return sorted(rank for at, rank in self.sent if at == interval)

    def largest(self, most: int) -> PartIntervals:
        """At most ``most`` own intervals and ``most`` of the halo, all as large as the largest one, which send as many rows as any does."""
        rows, count, num_halo = max(sizes(self.bounds)), min(self.num_own, most), min(len(self.halo), most)
        needed = Counter[int]()
        for (_, rank), number in self.sent.items():
            needed[rank] = max(needed[rank], number)
        return PartIntervals(
            bounds=tuple(rows * number for number in range(count + num_halo + 1)),
            num_own=count,
            owners=self.owners[:num_halo],
            rank=self.rank,
            sent={(interval, rank): number for interval in range(count) for rank, number in needed.items()},
            num_workers=self.num_workers,
            undivided=self.undivided,
            slice_lanes=self.slice_lanes,
            num_in_all=self.num_vertices,
        )


CutOwn = Callable[[int], Sequence[int]]
"Gives the bounds of a number of intervals of own vertices."
CutPart = Callable[[int, CutOwn], PartIntervals]
"Cuts all sources into about as many intervals."


def dealing(cut_part: CutPart, devices: Sequence[str]) -> CutPart:
    """Cuts as ``cut_part`` does, into so many intervals for each of some devices, and deals them in turn."""

    def cut(count: int, cut_own: CutOwn) -> PartIntervals:
        return replace(cut_part(count * len(devices), cut_own), devices=tuple(devices))

    return cut


def cut_graph(count: int, cut_own: CutOwn) -> PartIntervals:
    """Cut a whole graph, in which every source is an own vertex."""
    return PartIntervals.of_graph(cut_own(count))

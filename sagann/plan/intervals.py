"""Intervals: the bounds at which the range of vertex ids is cut."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from sagann.errors import InputError


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


def equal_edges(indptr: Tensor, count: int) -> tuple[int, ...]:
    """The bounds of ``count`` intervals of destinations with about as many in-edges each.

    Args:
        indptr: int64 [num_dst + 1], CSC offsets.
        count: number of intervals.
    References:
        Ma et al., NGra, 2018, Sec. 3.1, numbers vertices anew so that chunks have equally many edges. We cut the ids where
        the edges are equally many, which moves no vertex.
    Example:
        >>> import torch
        >>> equal_edges(torch.tensor([0, 6, 7, 8, 12]), 2)
        (0, 1, 4)
    """
    return equal_weights(indptr, count, vertex=0, edge=1)


def equal_weights(indptr: Tensor, count: int, *, vertex: int, edge: int) -> tuple[int, ...]:
    """The bounds of ``count`` intervals of about the same weight of vertices and in-edges.

    Args:
        indptr: int64 [num_dst + 1], CSC offsets.
        count: number of intervals.
        vertex: weight of a vertex.
        edge: weight of an edge.
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

"""Bounds of intervals: whole, ascending, and about equal."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st

from sagann.errors import InputError
from sagann.plan import equal_edges, equal_vertices, equal_weights


@settings(max_examples=50, deadline=None)
@given(degrees=st.lists(st.integers(0, 30), min_size=1, max_size=40), count=st.integers(1, 9))
def test_intervals_of_equal_edges(degrees: list[int], count: int) -> None:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    bounds = equal_edges(indptr, count)
    assert len(bounds) == count + 1
    assert list(bounds) == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, len(degrees))
    # None has more than its share but for one vertex.
    most = max(int(indptr[last] - indptr[first]) for first, last in pairwise(bounds))
    assert most <= sum(degrees) / count + max(degrees)


@settings(max_examples=50, deadline=None)
@given(degrees=st.lists(st.integers(0, 30), min_size=1, max_size=40), count=st.integers(1, 9))
def test_weights_of_vertices_alone_are_equal_vertices_and_of_edges_alone_equal_edges(
    degrees: list[int], count: int
) -> None:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    assert equal_weights(indptr, count, vertex=0, edge=1) == equal_edges(indptr, count)
    sizes = [last - first for first, last in pairwise(equal_weights(indptr, count, vertex=1, edge=0))]
    assert sum(sizes) == len(degrees)
    assert max(sizes) - min(sizes) <= 1


def test_no_interval_is_no_cut() -> None:
    for cut in (lambda: equal_vertices(20, 0), lambda: equal_edges(torch.tensor([0, 1]), 0)):
        with pytest.raises(InputError, match="vertices cannot be cut into that few intervals: 0, at least 1"):
            cut()

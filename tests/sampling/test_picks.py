"""Picks against their twins, and against the probabilities that they promise."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from sagann.graph.random_numbers import key_of
from sagann.sampling import picks
from tests.sampling import naive

KEY = key_of(5, 0)
LEAST_P = 1e-3
"Of the tests of frequencies, whose numbers are fixed."


def picked(
    degrees: list[int],
    fanout: int,
    *,
    replace: bool = False,
    weights: np.ndarray | None = None,
    dtype: type = np.int32,
) -> list[list[int]]:
    """The positions picked for each of some destinations with these in-degrees."""
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    vertices = np.arange(len(degrees))
    begins, ends = np.empty_like(vertices), np.empty_like(vertices)
    most = picks.find_rows(indptr, vertices, fanout, replace, begins, ends)
    np.testing.assert_array_equal([begins, ends], [indptr[:-1], indptr[1:]])
    out, positions = np.full(len(degrees) + 1, -7), np.full(most, -7, dtype=dtype)
    if weights is None:
        pick = picks.pick_uniform_replacing if replace else picks.pick_uniform
        count = pick(begins, ends, vertices, fanout, KEY, out, positions)
    else:
        pick = picks.pick_weighted_replacing if replace else picks.pick_weighted
        count = pick(begins, ends, vertices, fanout, KEY, out, positions, weights)
    assert count == out[-1] <= most
    assert weights is not None or count == most
    return [positions[out[row] : out[row + 1]].tolist() for row in range(len(degrees))]


DEGREES = [0, 1, 2, 5, 64, 65, 66, 130, 700, 5000, 3, 2]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [1, 3, 64, 65, 200, 6000])
def test_uniform_picks_equal_the_twins(fanout: int, replace: bool, dtype: type) -> None:
    found = picked(DEGREES, fanout, replace=replace, dtype=dtype)
    begin = 0
    for vertex, degree in enumerate(DEGREES):
        edges = range(begin, begin + degree)
        assert found[vertex] == naive.picked(edges, fanout, replace, None, KEY, vertex)
        begin += degree


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [1, 10, 70, 3000])
def test_weighted_picks_equal_the_twins(fanout: int, replace: bool, kind: type) -> None:
    degrees = [0, 1, 2, 5, 64, 65, 66, 130, 700, 3, 2, 2]
    weights = np.random.default_rng(0).exponential(size=sum(degrees)).astype(kind)
    weights[::3] = 0
    weights[-2:] = 0
    found = picked(degrees, fanout, replace=replace, weights=weights)
    begin = 0
    for vertex, degree in enumerate(degrees):
        edges = range(begin, begin + degree)
        expected = naive.picked(edges, fanout, replace, torch.from_numpy(weights), KEY, vertex)
        assert found[vertex] == expected
        begin += degree
    assert found[-1] == []


def test_every_set_of_edges_is_equally_likely() -> None:
    rows = picked([7] * 20_000, 3)
    counts = dict.fromkeys(combinations(range(7), 3), 0)
    for number, row in enumerate(rows):
        counts[tuple(edge - 7 * number for edge in row)] += 1
    assert chisquare(list(counts.values())).pvalue > LEAST_P


def test_with_replacement_every_edge_is_equally_likely_and_draws_are_independent() -> None:
    rows = picked([3] * 20_000, 2, replace=True)
    counts = {(a, b): 0 for a in range(3) for b in range(a, 3)}
    for number, row in enumerate(rows):
        counts[tuple(edge - 3 * number for edge in row)] += 1
    expected = [20_000 * (1 if a == b else 2) / 9 for a, b in counts]
    assert chisquare(list(counts.values()), expected).pvalue > LEAST_P


WEIGHTS = [2.0, 0.0, 1.0, 4.0, 3.0]


def test_weighted_sets_have_the_probabilities_of_picking_one_after_the_other() -> None:
    times, total = 20_000, sum(WEIGHTS)
    rows = picked([5] * times, 2, weights=np.tile(np.array(WEIGHTS, dtype=np.float32), times))
    expected = dict.fromkeys(combinations((0, 2, 3, 4), 2), 0.0)
    for first, second in permutations((0, 2, 3, 4), 2):
        pair = tuple(sorted((first, second)))
        expected[pair] += times * WEIGHTS[first] / total * WEIGHTS[second] / (total - WEIGHTS[first])
    counts = dict.fromkeys(expected, 0)
    for number, row in enumerate(rows):
        counts[tuple(edge - 5 * number for edge in row)] += 1
    assert chisquare(list(counts.values()), list(expected.values())).pvalue > LEAST_P


@pytest.mark.parametrize("replace", [False, True])
def test_weights_near_zero_are_weights(replace: bool) -> None:
    weights = np.array([0.0, 5e-324, 1e-310, 0.0])
    for row in picked([4], 2, replace=replace, weights=weights):
        assert set(row) <= {1, 2}
        assert len(row) == 2

"""Which edges are picked, and the numbers of what is sampled."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.stats import chisquare

from sagann.errors import InputError
from sagann.graph import rmat_graph
from sagann.graph.random_numbers import key_of
from sagann.sampling import NeighborSampler, numbering, picks, seed_batches
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


def numbered(
    indices: np.ndarray, hops: list[np.ndarray], seeds: np.ndarray, num_vertices: int, num_slots: int
) -> tuple[list[int], list[list[int]]]:
    """The ids of all vertices in order of appearance, and the local ids of each hop's sources."""
    ids = np.full(num_vertices + 1, -7)
    table = numbering.new_table(num_slots, indices.dtype)
    table[:] = 77
    repeated, table = numbering.number_seeds(seeds, ids, table, num_vertices)
    assert repeated == -1
    num_ids, found = len(seeds), []
    for positions in hops:
        local = np.full(len(positions), -7, dtype=np.int32)
        num_ids, table = numbering.number_sources(indices, positions, ids, num_ids, table, num_vertices, local)
        found.append(local.tolist())
    assert table.dtype == indices.dtype
    return ids[:num_ids].tolist(), found


def by_dictionary(
    indices: np.ndarray, hops: list[np.ndarray], seeds: np.ndarray
) -> tuple[list[int], list[list[int]]]:
    local = {int(vertex): number for number, vertex in enumerate(seeds)}
    found = [[local.setdefault(int(indices[edge]), len(local)) for edge in positions] for positions in hops]
    return list(local), found


@given(
    st.integers(0, 1000),
    st.sampled_from([5, 300, 5000, 10**6]),
    st.sampled_from([2, 16, 1 << 12, 1 << 20]),
    st.sampled_from([np.int32, np.int64]),
)
def test_local_ids_are_those_of_a_dictionary(seed: int, num_vertices: int, num_slots: int, dtype: type) -> None:
    generator = np.random.default_rng(seed)
    # Ids at equal distances collide most.
    step = generator.choice([1, 4096])
    indices = (generator.integers(num_vertices, size=3000) // step * step).astype(dtype)
    seeds = generator.permutation(num_vertices)[: generator.integers(1, 40)]
    hops = [generator.integers(3000, size=size).astype(np.int32) for size in generator.integers(0, 700, size=3)]
    assert numbered(indices, hops, seeds, num_vertices, num_slots) == by_dictionary(indices, hops, seeds)


def sampled(num_seeds: int = 200):
    graph = rmat_graph(5000, 200_000, seed=0)
    return NeighborSampler(graph.topology, [20, 20]).sample(torch.arange(num_seeds))


def test_prepared_blocks_have_the_out_edges_of_others() -> None:
    # More edges than one thread sorts by default.
    ready, plain = sampled(3000).prepare(), sampled(3000)
    assert ready.blocks[0].num_edges > 1 << 15
    for ours, other in zip(ready.blocks, plain.blocks, strict=True):
        for name in ("indptr", "indices", "edge_ids"):
            assert getattr(ours.csr(), name).equal(getattr(other.csr(), name))


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_the_page_runs() -> None:
    failed, attempted = doctest.testfile(str(DOCS / "minibatches.md"), module_relative=False)
    assert failed == 0
    assert attempted >= 20


SEEDS = torch.arange(100, 203)


@pytest.mark.parametrize(("batch_size", "sizes"), [(50, [50, 50, 3]), (200, [103])])
def test_every_seed_is_in_one_batch_and_a_smaller_last_one_may_be_left_out(
    batch_size: int, sizes: list[int]
) -> None:
    batches = seed_batches(SEEDS, batch_size)
    assert torch.cat(batches).sort().values.equal(SEEDS)
    assert [len(batch) for batch in batches] == sizes
    assert torch.cat(seed_batches(SEEDS, batch_size, shuffle=False)).equal(SEEDS)
    assert [len(batch) for batch in seed_batches(SEEDS, batch_size, drop_last=True)] == sizes[:-1]
    assert seed_batches(SEEDS[:0], batch_size) == ()


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int, batch_size: int = 10) -> list[int]:
        return torch.cat(seed_batches(SEEDS, batch_size, seed=seed, epoch=epoch)).tolist()

    first = order(3, 4)
    torch.manual_seed(99)
    assert order(3, 4) == order(3, 4, batch_size=7) == first
    assert len({tuple(order(seed, epoch)) for seed in range(5) for epoch in range(5)}) == 25


@pytest.mark.parametrize(
    ("use", "named"),
    [
        (lambda: seed_batches(torch.tensor([1, 2, 1]), 2), "1 stands more than once (in seed_batches, seeds)"),
        (lambda: seed_batches(torch.tensor([True]), 2), "nonzero().squeeze(1) for a mask"),
        (lambda: seed_batches("12", 2), "a str, expected Tensor or list or tuple or ndarray"),
        (lambda: seed_batches(SEEDS, 0), "0, expected an integer from 1 to 2^63 - 1 (in seed_batches, batch_size)"),
    ],
)
def test_wrong_arguments_are_named(use: Callable[[], object], named: str) -> None:
    with pytest.raises(InputError) as error:
        use()
    assert named in str(error.value)

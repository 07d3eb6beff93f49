"""Assignments keep their totals, and refuse what cannot be shared out."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sagann.errors import InputError
from sagann.plan.hybrid.assignment import HOST, Assignment, Threads, split_by
from tests.plan.hybrid.settings import FIRST, assignment


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="a task of the processor has no thread: 0 sample, 1 load, 1 train"):
        Threads(sample=0, load=1, train=1)
    threads = Threads(sample=1, load=1, train=1)
    for seeds in ({}, {HOST: 3}, {FIRST: 3}, {HOST: -1, FIRST: 4}, {HOST: 0, FIRST: 0}):
        with pytest.raises(InputError, match="seeds cannot be shared out so"):
            Assignment(seeds=seeds, threads=threads)
    with pytest.raises(InputError, match="the processor cannot sample so many seeds: 201 of 200"):
        assignment(host_sampled=201)


weights = st.dictionaries(st.text(min_size=1), st.floats(0, 1e6), min_size=1, max_size=9)


@given(total=st.integers(0, 10_000), given_weights=weights, fewest=st.integers(0, 3))
def test_shares_add_up_and_are_near_their_weights(total: int, given_weights: dict[str, float], fewest: int) -> None:
    total += fewest * len(given_weights)
    shares = split_by(total, given_weights, fewest=fewest)
    assert sum(shares.values()) == total
    assert list(shares) == list(given_weights)
    assert min(shares.values()) >= fewest
    free, scale = total - fewest * len(shares), sum(given_weights.values())
    if scale:
        for name, share in shares.items():
            assert abs(share - fewest - free * given_weights[name] / scale) <= 1 + 1e-6 * free

"""Bytes and seconds are those of equations 7 to 13, worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sagann.plan.hybrid.batches import BatchCounts
from sagann.plan.hybrid.work import (
    AS_PRINTED,
    Refinements,
    Widths,
    propagation_s,
)
from tests.plan.hybrid.settings import machine

COUNTS = BatchCounts(vertices=(1000, 100, 10), edges=(2000, 200))
GCN, SAGE = Widths(features=(25, 10, 5)), Widths(features=(25, 10, 5), concatenates=True)
# Sums over edges: 2000 x 25 x 4 bytes and 200 x 10 x 4 bytes at 1e9. Maps: 100 x 25 x 10 and 10 x 10 x 5 multiply-adds at 1e9.
GATHER, MAP = (2e-4, 8e-6), (2.5e-5, 5e-7)


def test_propagation_adds_sums_and_maps_where_they_are_not_pipelined() -> None:
    found = propagation_s(COUNTS, GCN, machine(), pipelined=False, refinements=AS_PRINTED)
    assert found == pytest.approx(GATHER[0] + MAP[0] + GATHER[1] + MAP[1] + MAP[0] + GATHER[1] + MAP[1])


def test_propagation_takes_the_longer_where_they_are_pipelined() -> None:
    found = propagation_s(COUNTS, GCN, machine(), pipelined=True, refinements=AS_PRINTED)
    assert found == pytest.approx(GATHER[0] + GATHER[1] + MAP[0] + GATHER[1])


def test_a_layer_that_concatenates_maps_twice_as_much() -> None:
    plain, wide = (
        propagation_s(COUNTS, each, machine(), pipelined=False, refinements=AS_PRINTED) for each in (GCN, SAGE)
    )
    assert wide - plain == pytest.approx(2 * (MAP[0] + MAP[1]))


def test_refinements_of_propagation() -> None:
    def seconds(refinements: Refinements) -> float:
        return propagation_s(COUNTS, GCN, machine(), pipelined=False, refinements=refinements)

    base = seconds(AS_PRINTED)
    assert seconds(replace(AS_PRINTED, launches=True)) == pytest.approx(base + 4 * 0.001)
    # The first layer's inputs are features, which get no gradient.
    assert seconds(replace(AS_PRINTED, both_gradients=True)) == pytest.approx(base + MAP[1])

"""Cores are shared by threads, equally, and none of them gets more than it wants."""

from __future__ import annotations

import pytest

from sagann.plan.shared_cores import core_speeds


@pytest.mark.parametrize(
    ("wanted", "num_cores", "speeds"),
    [
        ([], 2, []),
        ([1.0, 0.5], 2, [1.0, 1.0]),
        # Two threads of a step and a sampler: each gets two thirds of a core.
        ([2.0, 1.0], 2, [2 / 3, 2 / 3]),
        # A step that is serial for half of its time wants three quarters of each of two cores.
        ([1.5, 1.0], 2, [2 / 3 / 0.75, 2 / 3]),
        # What waits for a disk leaves most of its share to others.
        ([2.0, 0.2, 1.0], 2, [0.6, 1.0, 0.6]),
        ([1.0, 1.0, 1.0, 1.0], 1, [0.25] * 4),
    ],
)
def test_what_a_thread_does_not_want_is_shared_by_others(
    wanted: list[float], num_cores: int, speeds: list[float]
) -> None:
    assert core_speeds(wanted, num_cores) == pytest.approx(speeds)

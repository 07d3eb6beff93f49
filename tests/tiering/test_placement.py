"""Placement of hot rows on devices: every rank lies where it is read from, and hot rows are spread evenly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sagann.errors import InputError
from sagann.tiering.placement import place_hot_rows


def test_a_device_with_a_link_to_a_part_of_a_group_is_alone() -> None:
    groups = place_hot_rows([2] * 3, num_rows=9, linked=lambda first, second: {first, second} != {0, 2})
    assert [group.devices for group in groups] == [(0, 1), (2,)]


def test_all_may_be_replicated() -> None:
    (group,) = place_hot_rows([5, 3], num_rows=100, replicated=1.0)
    # The larger device has room for two rows more.
    assert group.seen_from(1)[0].tolist() == [1, 1, 1, 0, 0]
    (group,) = place_hot_rows([5, 5], num_rows=4, replicated=1.0)
    assert (group.num_replicated, group.num_hot_rows) == (4, 4)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=5),
    st.integers(0, 60),
    st.floats(0, 1),
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4))),
)
def test_rows_lie_where_they_are_read_from(
    num_slots: list[int], num_rows: int, replicated: float, links: set[tuple[int, int]]
) -> None:
    groups = place_hot_rows(
        num_slots,
        num_rows=num_rows,
        replicated=replicated,
        linked=lambda first, second: (first, second) in links or (second, first) in links,
    )
    assert sorted(device for group in groups for device in group.devices) == list(range(len(num_slots)))
    for group in groups:
        held = {device: group.held_by(device) for device in group.devices}
        for device in group.devices:
            assert len(held[device]) <= num_slots[device]
            owners, slots = group.seen_from(device)
            assert len(owners) == group.num_hot_rows <= num_rows
            assert [held[owner][slot] for owner, slot in zip(owners, slots, strict=True)] == list(
                range(len(owners))
            )
        # All room is used, unless there are no more rows.
        wanted = sum(num_slots[device] - group.num_replicated for device in group.devices) + group.num_replicated
        assert group.num_hot_rows == min(num_rows, wanted)
        # Of any number of hottest rows that fit everywhere, no device has two more than another one.
        full = min(num_slots[device] for device in group.devices) - group.num_replicated
        counts = np.bincount(group.owner[: full * len(group.devices)], minlength=len(num_slots))
        assert np.ptp(counts[list(group.devices)]) <= 1


@pytest.mark.parametrize("replicated", [-0.1, 1.5, float("nan")])
def test_a_part_out_of_range_is_refused(replicated: float) -> None:
    with pytest.raises(
        InputError, match=r"part out of range: .*, expected 0.0 to 1.0 \(in replicated\)\. Give the part"
    ):
        place_hot_rows([1], num_rows=2, replicated=replicated)

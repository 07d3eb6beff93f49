"""Parcels copy neighbours as one, and every tensor comes out as it was."""

from __future__ import annotations

from random import Random

import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sagann.kernels.packed import Layout
from sagann.runtime.device.parcels import ALIGNMENT, Parcel, mapped

TYPES = (torch.float32, torch.float64, torch.int64, torch.int16, torch.bool, torch.bfloat16, torch.uint8)


def copied(parcel: Parcel) -> list[Tensor]:
    """The tensors of a parcel in copies of its runs, each with random bytes around it, as memory of a device has."""
    copies = []
    for run in parcel.runs:
        memory = torch.randint(0, 255, (len(run) + 3 * ALIGNMENT,), dtype=torch.uint8)
        first = -memory.data_ptr() % ALIGNMENT + ALIGNMENT
        copies.append(memory[first : first + len(run)].copy_(run))
    return list(parcel.views(copies))


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.is_contiguous()
        assert torch.equal(one, other)
        assert one.data_ptr() % max(1, one.itemsize) == 0


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
forms = st.lists(st.tuples(shapes, st.sampled_from(TYPES)), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(forms, st.randoms(use_true_random=False), st.booleans())
def test_packed_tensors_travel_in_one_run_in_whatever_order_they_are_asked_for(
    forms: list[tuple[tuple[int, ...], torch.dtype]], random: Random, has_another: bool
) -> None:
    given = {str(number): torch.ones(shape).to(dtype) for number, (shape, dtype) in enumerate(forms)}
    layout = Layout(given)
    # Pinned memory begins at a page.
    memory = torch.zeros(layout.num_bytes + 4096, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 4096 :]
    tensors = [view.copy_(given[name]) for name, view in layout.views(memory).items()]
    another = [torch.arange(7)] if has_another else []
    random.shuffle(tensors)
    parcel = Parcel([*tensors, *another])
    assert_same(copied(parcel), [*tensors, *another])
    assert len([run for run in parcel.runs if len(run)]) <= 1 + has_another


def test_tensors_that_are_no_neighbours_or_lie_askew_keep_their_alignment() -> None:
    numbers = torch.arange(64, dtype=torch.float64)
    # Eight bytes past an aligned address: no tensor may follow it in its run.
    askew = [numbers[1:8], numbers[8:16]]
    apart = [numbers[24:25], numbers[40:48]]
    gaps, single = torch.arange(24).reshape(4, 6)[:, ::2], torch.tensor([3.0]).expand(7)[:1]
    tensors = [*askew, *apart, gaps, single, torch.tensor(5.0), torch.empty(0, 5)]
    assert_same(copied(Parcel(tensors)), [tensor.contiguous() for tensor in tensors])


def test_a_parcel_of_nothing_has_no_runs() -> None:
    parcel = Parcel([])
    assert (parcel.runs, list(parcel.views([]))) == ([], [])


def test_content_of_every_kind_is_mapped() -> None:
    tensor = torch.tensor([1])
    assert mapped(tensor, torch.neg).tolist() == [-1]
    assert mapped({"a": tensor}, torch.neg)["a"].tolist() == [-1]

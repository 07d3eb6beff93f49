"""Gather of rows from several sources: the device's kernel and its plain twin give the bits of plain indexing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sagann.kernels.row_gather import NOWHERE, PADDING, RowSources, gather_naive, gather_rows, shift_of
from tests.cuda import NO_TRITON, interpreted, on_device

gpu = pytest.importorskip("sagann.kernels.row_gather.gpu", reason=NO_TRITON)
NUM_ROWS = 40


def features_of(width: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(width)
    return torch.randn(NUM_ROWS, width, generator=generator).to(dtype)


def bytes_of(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), -1).view(torch.uint8)


def sources_of(rows: Tensor, source_of: list[int], dtype: torch.dtype, *, first_byte: int = 0) -> RowSources:
    """Each row in the source that is named, -1 for none; sources begin ``first_byte`` bytes after a multiple of 64."""
    data, shift = bytes_of(rows), shift_of(len(rows))
    places, tensors = torch.full((len(rows),), NOWHERE, dtype=dtype), []
    for source in range(max(source_of) + 1):
        ids = torch.tensor([row for row, here in enumerate(source_of) if here == source], dtype=torch.int64)
        memory = torch.empty(ids.numel() * data.shape[1] + first_byte, dtype=torch.uint8)
        tensors.append(memory[first_byte:].view(len(ids), data.shape[1]))
        # The last row of the features comes first.
        tensors[-1].copy_(data[ids.flip(0)])
        places[ids.flip(0)] = (torch.arange(len(ids)) + (source << shift)).to(dtype)
    return RowSources(tensors, places, shift)


def in_order(rows: Tensor) -> RowSources:
    """One source with all rows in their order, which needs no places."""
    return RowSources([bytes_of(rows)], None, shift_of(len(rows)), device=torch.device("cpu"))


IDS = {
    "none": [],
    "repeated": [3, 3, 39, 0, 3, 39],
    "all": list(range(NUM_ROWS)),
    "many": [(13 * number) % NUM_ROWS for number in range(131)],
}
SPREAD = {
    # A source without rows stands before the one of all rows.
    "all cold": [1] * NUM_ROWS,
    "mixed": [row % 2 for row in range(NUM_ROWS)],
    "four": [row % 4 for row in range(NUM_ROWS)],
}


@interpreted
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize(
    ("spread", "width"), [*((name, 33) for name in SPREAD), ("in order", 3), ("in order", 130)]
)
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_rows_have_the_bits_of_plain_indexing(
    ids: list[int], spread: str, width: int, id_dtype: torch.dtype
) -> None:
    features = features_of(width, torch.float32)
    at = torch.tensor(ids, dtype=id_dtype)
    sources = sources_of(features, SPREAD[spread], id_dtype) if spread in SPREAD else in_order(features)
    for gather in (gpu.gather_rows, gather_naive, gather_rows):
        out = torch.full((len(ids), width), torch.nan)
        if ids:
            gather(sources, at, bytes_of(out))
        assert torch.equal(out, features[at.long()])


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
@pytest.mark.parametrize("width", [1, 32, 100, 129, 300])
def test_any_width_and_any_beginning(width: int, dtype: torch.dtype) -> None:
    features = features_of(width, dtype)
    ids = torch.tensor([5, 0, 39, 5, 17])
    size = features.element_size()
    for first_byte in (0, size, 20 * size):
        sources = sources_of(features, SPREAD["mixed"], torch.int32, first_byte=first_byte)
        # The rows before and after those that are asked for must not be written.
        memory = torch.full((7, width * size), 0x7F, dtype=torch.uint8)
        gpu.gather_rows(sources, ids, memory[1:6])
        assert torch.equal(memory[1:6], bytes_of(features[ids]))
        assert bool((memory[[0, 6]] == 0x7F).all())


@interpreted
def test_rows_that_lie_nowhere_are_left_alone() -> None:
    features = features_of(8, torch.float32)
    sources = sources_of(features, [row % 3 - 1 for row in range(NUM_ROWS)], torch.int32)
    ids = torch.arange(NUM_ROWS)
    for gather in (gpu.gather_rows, gather_naive):
        out = torch.full((NUM_ROWS, 8), -1.0)
        gather(sources, ids, bytes_of(out))
        assert torch.equal(out[1::3], features[1::3])
        assert torch.equal(out[2::3], features[2::3])
        assert bool((out[0::3] == -1.0).all())


@interpreted
@pytest.mark.parametrize("width", [3, 200])
@pytest.mark.parametrize("has_places", [True, False])
def test_ids_of_no_row_give_zeros_and_rows_are_counted_by_source(has_places: bool, width: int) -> None:
    features = features_of(width, torch.float32)
    # A third of the rows lies nowhere.
    thirds = [row % 3 - 1 for row in range(NUM_ROWS)]
    sources = sources_of(features, thirds, torch.int32) if has_places else in_order(features)
    expected = [4, 1, 2, 1] if has_places else [4, 0, 4]
    ids = torch.tensor([3, PADDING, 1, NUM_ROWS, 2, 2**40, -2, PADDING, 4, -(2**40)])
    for gather in (gpu.gather_rows, gather_naive, gather_rows):
        counts = sources.new_counts()
        for _ in range(2):
            out = torch.full((len(ids), width), 7.0)
            gather(sources, ids, bytes_of(out), counts)
        assert counts.sum(0)[: len(expected)].tolist() == [2 * count for count in expected]
        assert int(counts.sum()) == 2 * sum(expected)
        is_row = (ids >= 0) & (ids < NUM_ROWS)
        assert bool((out[~is_row] == 0).all())
        wanted = features[ids[is_row]]
        wanted[0] = 7.0 if has_places else wanted[0]
        assert torch.equal(out[is_row], wanted)


@interpreted
def test_rows_of_no_bytes() -> None:
    sources = RowSources([torch.empty(4, 0, dtype=torch.uint8)], torch.arange(4), shift_of(4))
    for gather in (gpu.gather_rows, gather_rows):
        gather(sources, torch.arange(3), torch.empty(3, 0, dtype=torch.uint8))


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize("width", [33, 300])
def test_a_device_reads_its_own_memory_and_the_hosts(width: int) -> None:
    features = features_of(width, torch.float32)
    sources = sources_of(features, SPREAD["mixed"], torch.int32)
    tensors = [sources.tensors[0].to("cuda"), sources.tensors[1].pin_memory()]
    on_device = RowSources(tensors, sources.places.to("cuda"), sources.shift)
    out = torch.full((NUM_ROWS, width), torch.nan, device="cuda")
    gather_rows(on_device, torch.arange(NUM_ROWS, device="cuda"), bytes_of(out))
    assert torch.equal(out.cpu(), features)

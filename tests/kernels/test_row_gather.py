"""Gathers of rows from several sources, and picks of edges: a device's kernels, in Triton's interpreter, give the bits of the processor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sagann.graph.random_numbers import key_of
from sagann.kernels.row_gather import NOWHERE, PADDING, RowSources, gather_naive, gather_rows, shift_of
from sagann.sampling import picks
from tests.cuda import NO_TRITON, interpreted, on_device

gpu = pytest.importorskip("sagann.kernels.row_gather.gpu", reason=NO_TRITON)
edge_picks = pytest.importorskip("sagann.kernels.edge_picks", reason=NO_TRITON)
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


# With and without the highest bit.
KEYS = sorted(int(key_of(seed, 17)) for seed in range(6))[::5]


def rows_of(degrees: list[int], first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Begins, degrees and ids of destinations; ``first`` is the first position of an edge."""
    counts = torch.tensor(degrees)
    vertices = torch.randperm(10**6, generator=torch.Generator().manual_seed(1))[: len(degrees)]
    return first + counts.cumsum(0) - counts, counts, vertices


def expected(
    pick: Callable[..., int], begins: Tensor, degrees: Tensor, vertices: Tensor, fanout: int, key: int
) -> tuple[Tensor, Tensor]:
    indptr = np.empty(len(begins) + 1, np.int64)
    positions = np.empty(fanout * len(begins), np.int64)
    rows = (each.numpy() for each in (begins, begins + degrees, vertices))
    count = pick(*rows, fanout, np.uint64(key), indptr, positions)
    return torch.from_numpy(indptr), torch.from_numpy(positions[:count])


def degrees_around(fanout: int, count: int) -> list[int]:
    """Degrees of 0, below the fanout, at it, and far above it."""
    numbers = np.random.default_rng(fanout).integers(0, 3 * fanout + 2, count)
    return [0, fanout - 1, fanout, fanout + 1, 100_000, *numbers.tolist()]


def in_memory(key: int, device: str = "cpu") -> torch.Tensor:
    """The 64 bits of a key, where a kernel reads them."""
    return torch.tensor(key - (key >> 63 << 64), device=device)


def check_different(
    fanout: int, key: int, count: int, dtype: torch.dtype, first: int = 0, device: str = "cpu"
) -> None:
    rows = rows_of(degrees_around(fanout, count), first)
    indptr, positions = expected(picks.pick_uniform, *rows, fanout, key)
    # Places before and after the picks must not be written.
    memory = torch.full((len(positions) + 2,), -1, dtype=dtype, device=device)
    on = [each.to(device) for each in rows]
    edge_picks.pick_different(*on, fanout, in_memory(key, device), indptr.to(device), memory[1:-1])
    assert memory[1:-1].tolist() == positions.tolist()
    assert memory[[0, -1]].tolist() == [-1, -1]


def check_drawn(fanout: int, key: int, count: int, dtype: torch.dtype, first: int = 0, device: str = "cpu") -> None:
    rows = rows_of([degree for degree in degrees_around(fanout, count) if degree], first)
    _, positions = expected(picks.pick_uniform_replacing, *rows, fanout, key)
    memory = torch.full((len(positions) + 2,), -1, dtype=dtype, device=device)
    edge_picks.draw(*(each.to(device) for each in rows), fanout, in_memory(key, device), memory[1:-1])
    assert memory[1:-1].view(-1, fanout).sort(dim=1).values.view(-1).tolist() == positions.tolist()
    assert memory[[0, -1]].tolist() == [-1, -1]


@interpreted
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(("fanout", "count"), [(1, 600), (3, 40), (25, 3), (70, 0)])
def test_edges_are_those_that_the_processor_picks(fanout: int, count: int, key: int) -> None:
    check_different(fanout, key, count, torch.int32)
    check_drawn(fanout, key, count, torch.int32)


@interpreted
def test_positions_beyond_32_bits() -> None:
    check_different(4, KEYS[0], 20, torch.int64, first=2**33)
    check_drawn(4, KEYS[0], 20, torch.int64, first=2**33)


@interpreted
def test_no_destination_has_an_edge() -> None:
    none = torch.empty(0, dtype=torch.int32)
    zeros, key = torch.zeros(3, dtype=torch.int64), in_memory(KEYS[0])
    edge_picks.pick_different(zeros, zeros, torch.arange(3), 2, key, torch.zeros(4, dtype=torch.int64), none)
    edge_picks.draw(zeros[:0], zeros[:0], zeros[:0], 2, key, none)


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize("fanout", [1, 5, 25, 1024])
def test_a_device_picks_what_the_processor_picks(fanout: int) -> None:
    for key in KEYS:
        check_different(fanout, key, 1000, torch.int32, device="cuda")
        check_drawn(fanout, key, 1000, torch.int64, first=2**33, device="cuda")

"""Picks of a device's kernels, in Triton's interpreter, against those of the processor: the same edges, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sagann.graph.random_numbers import key_of
from sagann.sampling import picks
from tests.cuda import NO_TRITON, interpreted, on_device

edge_picks = pytest.importorskip("sagann.kernels.edge_picks", reason=NO_TRITON)
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
    """Offsets and positions of the processor's picks."""
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

"""The aggregate kernel: sums are the values model's bit by bit, and cycles and stalls are the clock's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sagann.hardware import KernelDesign, cycles_of
from sagann.hardware.arithmetic import aggregated

pytest.importorskip("amaranth", reason="needs the extra 'hardware'")

from tests.hardware.simulated import Hop, Run, hop_of, random_hop, run_kernel

SMALL = KernelDesign(scatter_pes=4, lanes=4, window_rows=4, row_chunks=8, beat_chunks=2, bank_chunks=64)


HOPS: dict[str, Callable[[], Hop]] = {
    "hub": lambda: hop_of(np.arange(20), np.zeros(20, dtype=np.int64), 9, num_pes=4),
    "star": lambda: hop_of(np.zeros(20, dtype=np.int64), np.arange(20), 5, num_pes=4),
    "isolated": lambda: hop_of(np.array([1, 2, 2]), np.array([0, 4, 9]), 3, num_pes=4),
    "doubled edges": lambda: hop_of(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 1]), 8, num_pes=4),
    "narrow": lambda: random_hop(20, 30, 60, 3, num_pes=4),
    "wide": lambda: random_hop(20, 6, 24, 30, num_pes=4),
    "odd": lambda: random_hop(20, 10, 40, 14, num_pes=4),
}


def require_exact(hop: Hop, design: KernelDesign, run: Run) -> None:
    expected = aggregated(hop.indptr, hop.rows, hop.coefficients, hop.features)
    assert np.array_equal(run.sums.view(np.uint32), expected.view(np.uint32))
    each = hop.read(design)
    cycles = cycles_of(each, design)
    assert run.cycles == (cycles.issue, cycles.rows, cycles.room, cycles.hazard)
    # Each row of a unique source is read once.
    assert run.beats == len(hop.features) * design.beats(each.chunks)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOPS)
def test_the_kernel_is_exact(name: str) -> None:
    hop = HOPS[name]()
    require_exact(hop, SMALL, run_kernel(hop, SMALL))


@pytest.mark.slow
@pytest.mark.parametrize(
    "design",
    [
        KernelDesign(
            scatter_pes=1, lanes=3, window_rows=1, row_chunks=1, beat_chunks=1, bank_chunks=40, array_columns=3
        ),
        KernelDesign(scatter_pes=2, lanes=1, window_rows=16, row_chunks=8, beat_chunks=8, bank_chunks=100),
        KernelDesign(scatter_pes=8, lanes=2, window_rows=8, row_chunks=2, beat_chunks=1, bank_chunks=16),
    ],
    ids=["1 PE", "2 PEs", "8 PEs"],
)
def test_kernels_of_other_sizes_are_exact(design: KernelDesign) -> None:
    hop = random_hop(15, 20, 40, 3, num_pes=design.scatter_pes)
    require_exact(hop, design, run_kernel(hop, design))


@pytest.mark.slow
def test_a_program_after_another_one_is_exact() -> None:
    hop, before = HOPS["odd"](), HOPS["wide"]()
    require_exact(hop, SMALL, run_kernel(hop, SMALL, before=before))


def test_sums_are_those_of_float64() -> None:
    hop = random_hop(50, 40, 300, 10, num_pes=8)
    expected = aggregated(hop.indptr, hop.rows, hop.coefficients, hop.features)
    twin = np.zeros(expected.shape)
    destinations = np.repeat(np.arange(hop.num_dst), np.diff(hop.indptr))
    np.add.at(twin, destinations, hop.coefficients[:, None].astype(np.float64) * hop.features[hop.rows])
    assert np.abs(expected - twin).max() < 1e-5


def test_the_clock_of_a_full_sized_kernel() -> None:
    """Of a mini-batch's hop, words are nearly full and hardly wait: the kernel takes as long as its edges."""
    design = KernelDesign()
    hop = random_hop(20_000, 1024, 10_240, 100, num_pes=design.scatter_pes)
    each = hop.read(design)
    cycles = cycles_of(each, design)
    assert cycles.issue - cycles.rows - cycles.hazard == each.count * each.chunks
    least = max(len(hop.rows) / 8 * each.chunks, len(hop.features) * design.beats(each.chunks))
    assert cycles.issue < 1.15 * least

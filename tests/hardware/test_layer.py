"""The update kernel and a layer's forward: values are the values model's bit by bit, and cycles and stalls are the clock's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sagann.errors import InputError
from sagann.hardware import KernelDesign, cycles_of
from sagann.hardware.arithmetic import aggregated, mapped, outer

pytest.importorskip("amaranth", reason="needs the extra 'hardware'")

from tests.hardware.simulated import Hop, gradient_of, hop_of, random_hop, run_layer

SMALL = KernelDesign(
    scatter_pes=2,
    lanes=4,
    window_rows=8,
    row_chunks=4,
    beat_chunks=2,
    bank_chunks=64,
    array_columns=4,
    array_weights=8,
)


CASES: dict[str, Callable[[], tuple[Hop, int]]] = {
    "few columns": lambda: (random_hop(12, 9, 30, 7, num_pes=2), 3),
    "many columns": lambda: (random_hop(12, 5, 20, 5, num_pes=2), 15),
    "one destination": lambda: (hop_of(np.arange(6), np.zeros(6, dtype=np.int64), 16, num_pes=2), 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("relu", [False, True])
def test_a_layer_is_exact(name: str, relu: bool) -> None:
    hop, width = CASES[name]()
    random = np.random.default_rng(1)
    weights = random.standard_normal((hop.features.shape[1], width)).astype(np.float32)
    bias = random.standard_normal(width).astype(np.float32)
    program = hop.program(SMALL)
    run = run_layer(hop, program, SMALL, weights, bias, relu=relu)
    sums = aggregated(hop.indptr, hop.rows, hop.coefficients, hop.features)
    expected = mapped(sums, weights, bias, lanes=4, relu=relu)
    assert np.array_equal(run.values.view(np.uint32), expected.view(np.uint32))
    assert np.array_equal(run.mask, expected > 0 if relu else expected != 0)
    assert run.cycles == cycles_of(program, SMALL, tiles=SMALL.tiles(width, program.chunks))
    twin = sums.astype(np.float64) @ weights + bias
    assert np.abs(expected - (np.maximum(twin, 0) if relu else twin)).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "chunks", "tiles"), [(12, 1, 1), (7, 2, 3)])
def test_gradients_of_weights_are_exact(num_rows: int, chunks: int, tiles: int) -> None:
    design = replace(SMALL, lanes=3)
    random = np.random.default_rng(2)
    rows = random.standard_normal((num_rows, chunks * 3)).astype(np.float32)
    grads = random.standard_normal((num_rows, tiles * 4)).astype(np.float32)
    expected = outer(rows, grads)
    found = gradient_of(design, rows, grads).reshape(expected.shape)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
    assert np.abs(expected - rows.T.astype(np.float64) @ grads).max() < 1e-5


def test_a_layer_of_a_mini_batch_takes_as_long_as_its_longest_part() -> None:
    """Aggregation and update overlap (equation 10)."""
    design = KernelDesign()
    hop = random_hop(20_000, 1024, 10_240, 100, num_pes=design.scatter_pes)
    program = hop.program(design)
    tiles = design.tiles(256, program.chunks)
    cycles = cycles_of(program, design, tiles=tiles)
    update = 1024 / 8 * program.chunks * max(8 * tiles, 9)
    assert cycles.update < 1.15 * max(cycles_of(program, design).issue, update)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"weights do not fit the kernel: 16 x 12 with padding are 12 for each .*keeps 8"
    ):
        SMALL.tiles(9, 4)

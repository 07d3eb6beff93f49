"""Training of a mini-batch: values are the values model's bit by bit, cycles and bytes the clock's, gradients those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pytest
import torch

from sagann.errors import InputError
from sagann.hardware import Hop, KernelDesign, Pass, Training, cycles_of
from sagann.hardware.values import run_values

pytest.importorskip("amaranth", reason="needs the extra 'hardware'")

from sagann.hardware.rtl.streams import beat_layout, parameters_layout, word_layout
from tests.hardware.simulated import Array, PassRun, run_passes

SMALL = KernelDesign(
    scatter_pes=2,
    lanes=4,
    window_rows=8,
    row_chunks=4,
    beat_chunks=2,
    bank_chunks=256,
    array_columns=4,
    array_weights=64,
    row_entries=64,
    mask_entries=64,
)
"An entry of its memory of rows is a beat of two tiles."
WIDE = replace(SMALL, scatter_pes=4, lanes=2, row_chunks=8, beat_chunks=1, array_columns=8)
"An entry of its memory of rows is a tile of four beats."
NARROW = replace(SMALL, scatter_pes=1, lanes=2, window_rows=2, row_chunks=8, beat_chunks=8, array_columns=2)


class Share:
    """A mini-batch with random blocks, parameters and gradients of its scores."""

    def __init__(self, sizes: tuple[int, ...], widths: tuple[int, ...], *, own: bool) -> None:
        """Sizes of the layers, of which the first has the features."""
        random = np.random.default_rng(3)
        self.hops = []
        for num_src, num_dst in pairwise(sizes):
            num_edges = num_dst * 5 // 2
            destinations, sources = (
                np.sort(random.integers(0, num_dst, num_edges)),
                random.integers(0, num_src, num_edges),
            )
            coefficients = random.standard_normal(num_edges).astype(np.float32)
            self.hops.append(Hop(np.searchsorted(destinations, np.arange(num_dst + 1)), sources, coefficients))
        self.widths, self.own = widths, own
        shapes = [(width * (1 + own), after) for width, after in pairwise(widths)]
        self.weights = [random.standard_normal(shape).astype(np.float32) / 2 for shape in shapes]
        self.biases = [random.standard_normal(shape[1]).astype(np.float32) for shape in shapes]
        self.features = random.standard_normal((sizes[0], widths[0])).astype(np.float32)
        self.grads = random.standard_normal((sizes[-1], widths[-1])).astype(np.float32)

    def passes(self, training: Training) -> tuple[list[Pass], dict[int, Array], list[int]]:
        """All passes, rows that come from external memory, and the numbers of the passes that give scores."""
        parts, loads = training.sub_batches(self.hops), training.loads(self.weights, self.biases)
        return training.passes(parts, loads, self.features, self.grads)

    def twin(self) -> tuple[Array, list[tuple[Array, Array]]]:
        """Scores, and gradients of weights and biases, by PyTorch in float64."""
        rows = torch.tensor(self.features, dtype=torch.float64)
        weights, biases = (
            [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in values]
            for values in (self.weights, self.biases)
        )
        for number, hop in enumerate(self.hops):
            destinations = torch.tensor(np.repeat(np.arange(hop.num_dst), np.diff(hop.indptr)))
            messages = torch.tensor(hop.coefficients)[:, None] * rows[hop.sources]
            sums = torch.zeros(hop.num_dst, rows.shape[1], dtype=torch.float64).index_add(0, destinations, messages)
            sums = torch.cat([rows[: hop.num_dst], sums], dim=1) if self.own else sums
            rows = sums @ weights[number] + biases[number]
            rows = rows.relu() if number + 1 < len(self.hops) else rows
        rows.backward(torch.tensor(self.grads, dtype=torch.float64))
        return rows.detach().numpy(), [
            (weight.grad.numpy(), bias.grad.numpy())  # type: ignore[union-attr]
            for weight, bias in zip(weights, biases, strict=True)
        ]


def values_of(share: Share, training: Training) -> tuple[Array, list[tuple[Array, Array]], list[Array]]:
    """Scores and gradients of the values model, and the results of all passes."""
    passes, rows, scores = share.passes(training)
    results = run_values(passes, rows, training.design)
    found = training.scores(training.sub_batches(share.hops), [results[number] for number in scores])
    last = results[-training.num_layers :]
    return found, [training.gradients(layer, each) for layer, each in enumerate(last, 1)], results


CASES = {
    "gcn": (SMALL, Share((12, 7, 4), (6, 5, 3), own=False)),
    "sage": (SMALL, Share((12, 7, 4), (6, 5, 3), own=True)),
    "three wide layers": (WIDE, Share((10, 6, 5, 3), (5, 9, 10, 2), own=False)),
    "sage, wide": (WIDE, Share((9, 5, 3), (5, 7, 2), own=True)),
    "one layer": (NARROW, Share((6, 4), (5, 3), own=True)),
    "one PE": (NARROW, Share((5, 3, 2), (3, 4, 1), own=False)),
    "sub-batches of wide tiles": (
        replace(WIDE, scatter_pes=2, bank_chunks=14),
        Share((9, 6, 4), (3, 5, 2), own=False),
    ),
    "more lanes than chunks": (
        replace(NARROW, lanes=8, row_chunks=1, beat_chunks=1, array_columns=8),
        Share((3, 2), (3, 2), own=False),
    ),
    "tiles wider than rows": (
        replace(NARROW, window_rows=1, row_chunks=2, beat_chunks=2, array_columns=8),
        Share((3, 2), (2, 2), own=True),
    ),
    "one column": (replace(NARROW, lanes=1, array_columns=1), Share((3, 2), (3, 1), own=False)),
    "sub-batches": (replace(SMALL, bank_chunks=8), Share((12, 8, 6), (4, 4, 2), own=False)),
}


def traffic_of(settings: Pass, design: KernelDesign) -> tuple[int, int]:
    """The bytes that a pass reads and writes: rows of sources once in whole beats, words and parameters in whole bytes each, results in tiles."""
    word, parameters, beat = (
        -(-layout(design).size // 8) for layout in (word_layout, parameters_layout, beat_layout)
    )
    tile, program = 4 * design.array_columns, settings.program
    if settings.loads is not None:
        return settings.count * parameters, 0
    if settings.reads_out:
        return 0, (settings.drains.chunks * design.lanes + 1) * settings.tiles * tile
    assert program is not None
    rows = 0 if settings.rows_on_chip else settings.rows * design.beats(settings.row_chunks) * beat
    leaves = not (settings.keeps or settings.gradient)
    written = int(program.drains.sum()) * settings.tiles * tile if leaves else 0
    return rows + program.num_words * word, written


Simulator: TypeAlias = Callable[[list[Pass], dict[int, Array], KernelDesign], list[PassRun]]


def require_exact(design: KernelDesign, share: Share, simulated: Simulator) -> None:
    """Results, cycles, stalls and bytes of all passes are those of the models."""
    training = Training(design=design, widths=share.widths, own=share.own)
    passes, rows, _ = share.passes(training)
    *_, expected = values_of(share, training)
    for each, run, values in zip(passes, simulated(passes, rows, design), expected, strict=True):
        assert np.array_equal(run.results.view(np.uint32), values.view(np.uint32))
        cycles = cycles_of(each, design)
        assert (run.total, run.stalls) == (cycles.total, (cycles.rows, cycles.room, cycles.hazard))
        assert run.traffic == traffic_of(each, design)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_circuits_train_as_the_values_model_says(name: str) -> None:
    design, share = CASES[name]
    training = Training(design=design, widths=share.widths, own=share.own)
    assert (len(training.sub_batches(share.hops)) > 1) == ("sub-batches" in name)
    require_exact(design, share, run_passes)


@pytest.mark.slow
def test_a_gradient_of_minus_zero_is_read_out_as_zero() -> None:
    share = Share((2, 2), (1, 1), own=False)
    share.hops = [Hop(np.arange(3), np.arange(2), np.ones(2, dtype=np.float32))]
    # The gradient of the weight is 2^-128 below zero, and so -0.
    share.features = np.array([[1.5], [1.75]], dtype=np.float32) * np.float32(2.0**-63)
    share.grads = np.array([[1], [-1]], dtype=np.float32) * np.float32(2.0**-63)
    require_exact(NARROW, share, run_passes)


@pytest.mark.slow
def test_streams_may_have_gaps() -> None:
    design, share = CASES["sage, wide"]
    training = Training(design=design, widths=share.widths, own=share.own)
    passes, rows, _ = share.passes(training)
    *_, expected = values_of(share, training)
    for run, values in zip(run_passes(passes, rows, design, gaps=0.6), expected, strict=True):
        assert np.array_equal(run.results.view(np.uint32), values.view(np.uint32))


@pytest.mark.parametrize("name", CASES)
def test_scores_and_gradients_are_those_of_pytorch(name: str) -> None:
    design, share = CASES[name]
    scores, gradients, _ = values_of(share, Training(design=design, widths=share.widths, own=share.own))
    expected, expected_gradients = share.twin()
    assert np.abs(scores - expected).max() < 1e-5 * np.abs(expected).max()
    for pair, expected_pair in zip(gradients, expected_gradients, strict=True):
        for found, twin in zip(pair, expected_pair, strict=True):
            assert np.abs(found - twin).max() < 1e-5 * np.abs(twin).max()


def sampled_hops(num_seeds: int, fanouts: tuple[int, ...], *, own: bool) -> list[Hop]:
    """Blocks of a mini-batch of a graph some of whose vertices have many more edges than others; without own rows, with self-loops."""
    random = np.random.default_rng(0)
    vertices = random.permutation(1_000_000)[:num_seeds]
    hops: list[Hop] = []
    for fanout in fanouts:
        picked = (random.random((len(vertices), fanout)) ** 3 * 1_000_000).astype(np.int64)
        picked = picked if own else np.column_stack([vertices, picked])
        everything = np.concatenate([vertices, np.setdiff1d(picked, vertices)])
        order = np.argsort(everything)
        sources = order[np.searchsorted(everything[order], picked.ravel())]
        indptr = np.arange(len(vertices) + 1) * picked.shape[1]
        hops.insert(0, Hop(indptr, sources, np.ones(len(sources), dtype=np.float32)))
        vertices = everything
    return hops


@pytest.mark.parametrize("own", [False, True], ids=["gcn", "sage"])
def test_a_mini_batch_takes_as_long_as_the_longest_part_of_each_pass(own: bool) -> None:
    """External memory, scatter PEs and array overlap (equation 10), with 128 rows in the window."""
    sizes = dict.fromkeys(("bank_chunks", "row_entries", "mask_entries"), 1 << 17)
    design = KernelDesign(row_chunks=32, array_weights=256, **sizes)
    training = Training(design=design, widths=(100, 256, 47), own=own)
    (part,) = training.sub_batches(sampled_hops(1024, (10, 25), own=own))
    found, bound = 0, 0.0
    for each in (*part.forward, *part.backward):
        assert each.program is not None
        is_drain = each.program.drains > 0
        beats = 0 if each.rows_on_chip else each.rows * design.beats(each.row_chunks)
        edges = (each.program.destination[~is_drain] >= 0).sum()
        num_read = each.program.drains[is_drain & (each.program.is_grads == each.gradient)].sum()
        scatter, array = edges / design.scatter_pes * each.chunks, num_read * each.drains.chunks * each.tiles
        found += cycles_of(each, design).total
        bound += max(beats, scatter, array)
    assert found < 1.15 * bound


def test_no_seeds_have_no_passes() -> None:
    nothing = np.empty(0, dtype=np.int64)
    training = Training(design=SMALL, widths=(6, 3), own=False)
    assert training.sub_batches([Hop(np.zeros(1, dtype=np.int64), nothing, nothing.astype(np.float32))]) == []


def test_what_does_not_fit_is_refused() -> None:
    share = Share((12, 7, 4), (6, 5, 3), own=False)
    with pytest.raises(InputError, match=r"kernel is too small: weights need 20 or more of its 16"):
        Training(design=replace(SMALL, array_weights=16), widths=(12, 15, 3), own=False).sub_batches(share.hops)
    with pytest.raises(InputError, match=r"kernel is too small: sums in a bank need \d+ or more of its 4"):
        Training(design=replace(SMALL, bank_chunks=4), widths=(6, 5, 3), own=False).sub_batches(share.hops)
    with pytest.raises(InputError, match=r"kernel is too small: masks of ReLU need"):
        Training(design=replace(SMALL, mask_entries=1), widths=(6, 5, 3), own=False).sub_batches(share.hops)
    with pytest.raises(InputError, match=r"kernel is too small: rows of inner layers need"):
        Training(design=replace(SMALL, row_entries=1), widths=(6, 5, 3), own=False).sub_batches(share.hops)
    with pytest.raises(
        InputError,
        match=r"rows do not fit the kernel: 9 floats beside a vertex's own take 6 chunks, and it takes 4",
    ):
        Training(design=SMALL, widths=(9, 3), own=True).reads_out()
    with pytest.raises(InputError, match=r"array_columns is 6, expected 4 lanes times a power of 2"):
        replace(SMALL, array_columns=6)

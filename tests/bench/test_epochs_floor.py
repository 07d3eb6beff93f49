"""The floor's work, counted by hand for a graph of 10 vertices and 30 edges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.epochs.floor import Size, work_of

SIZE = Size(vertices=10, edges=30, features=20, classes=3, train=6, hidden=8, heads=4, layers=2, encoder=False)
LOSS_BYTES = 4 * (4 * 6 * 3 + 10 * 3)
ACTIVATION_BYTES = 4 * 5 * 10 * 8


def test_gcn_gathers_the_narrow_side_and_keeps_the_sum_of_constants() -> None:
    work = work_of("gcn", SIZE)
    assert work.products == [(10, 20, 8), (20, 10, 8), (10, 8, 3), (8, 10, 3), (10, 3, 8)]
    assert work.gathers == [3, 3]
    assert work.moved_bytes == LOSS_BYTES + ACTIVATION_BYTES


def test_behind_an_encoder_nothing_is_constant() -> None:
    work = work_of("gcn", replace(SIZE, encoder=True))
    assert work.products[:2] == [(10, 20, 8), (20, 10, 8)]
    assert work.gathers == [8, 8, 3, 3]
    assert work.moved_bytes == LOSS_BYTES + 2 * ACTIVATION_BYTES


def test_gat_has_one_head_in_the_last_layer() -> None:
    work = work_of("gat", SIZE)
    assert work.gathers == [8, 4, 8, 12, 3, 1, 3, 3]
    of_scores = 2 * 30 * 4 + 2 * 10 * 8 + 2 * 30 * 1 + 2 * 10 * 3
    assert work.moved_bytes == LOSS_BYTES + ACTIVATION_BYTES + 4 * of_scores


@pytest.mark.parametrize(
    ("model", "gathers"),
    [
        ("commnet", [3, 3]),
        ("sage", [3, 3]),
        ("gin", [3, 3]),
        ("maxpool-gcn", [20, 8]),
        ("gated-gcn", 6 * [20] + 6 * [8]),
        ("ggnn", [8, 8, 8, 8]),
    ],
)
def test_gathers(model: str, gathers: list[int]) -> None:
    assert work_of(model, SIZE).gathers == gathers


def test_dropout_moves_its_input_and_leaves_no_sum_constant() -> None:
    work = work_of("gcn", replace(SIZE, dropout=True))
    assert work.gathers == [8, 8, 3, 3]
    assert work.moved_bytes == LOSS_BYTES + ACTIVATION_BYTES + 4 * 4 * 10 * (20 + 8)


def test_sparse_features_are_mapped_by_their_non_zeros() -> None:
    work = work_of("sage", replace(SIZE, nonzeros=25, dropout=True))
    assert (work.by_rows, work.by_columns) == ([8, 8], [8, 8])
    assert work.gathers == [8, 8, 3, 3]
    assert len(work.products) == 6
    assert work.moved_bytes == LOSS_BYTES + ACTIVATION_BYTES + 4 * 4 * (25 + 10 * 8)


def test_an_evaluation_has_forward_passes_only() -> None:
    trained, both = work_of("gcn", SIZE), work_of("gcn", replace(SIZE, evaluates=True))
    assert both.products == [*trained.products, (10, 20, 8), (10, 8, 3)]
    assert both.gathers == [*trained.gathers, 3]
    assert both.moved_bytes == trained.moved_bytes + 4 * (2 * 10 * 8 + 10 * 3)
    dropped = work_of("gcn", replace(SIZE, evaluates=True, dropout=True))
    assert dropped.gathers == [8, 8, 3, 3, 3]

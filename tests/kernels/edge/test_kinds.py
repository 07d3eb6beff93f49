"""Facts of edge functions: widths, results and their places."""

from __future__ import annotations

import pytest
import torch

from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.kinds import feature_width, merged_results, placed, reduced_outputs, results_of
from tests.kernels.edge import cases
from tests.kernels.edge.functions import attention, gated


@pytest.mark.parametrize(
    ("function", "width"),
    [(gated(41), 41), (attention(8, 8), None), (attention(1, 20), 20), (cases.MOVED["permute"], None)],
)
def test_rows_are_cut_into_tiles_only_where_no_lane_moves(function: EdgeFunction, width: int | None) -> None:
    assert feature_width(function) == width


def test_results_and_their_places() -> None:
    function = cases.all_reductions("dst")
    results = results_of(function)
    places = {output.reduce: here for output, here in placed(function.outputs)}
    assert [result.rows for result in results[places["total"]]] == ["item"]
    assert [result.dtype for result in results[places["max"]]] == [torch.float64, None]
    assert [result.neutral for result in results[places["softmax"]]] == [0, -torch.inf, 0]
    assert [result.full_shape(9) for result in results[places["moments"]]] == [(9, 5), (9, 5), (9,)]
    assert results[places["total"]][0].full_shape(9) == (5,)
    assert [output.reduce for output in function.outputs if output not in reduced_outputs(function)] == ["edge"]
    assert {reduction.name for reduction, _ in merged_results(function)} == places.keys() - {"total", "edge"}

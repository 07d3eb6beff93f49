"""Passes over edges, and what is recorded of them."""

from __future__ import annotations

import pytest
import torch

from sagann.nn import GNN, SAGE
from sagann.plan import equal_vertices
from sagann.plan.steps import Move
from sagann.plan.timeline import LANES
from sagann.runtime.gather import divisors
from sagann.runtime.recorder import Recorder, recorded
from sagann.runtime.streaming.streamed import StreamedModel
from tests.graphs import random_topology


@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_divisors_fit_the_rows_that_they_divide(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    degrees, rows = torch.tensor([2, 0, 1, 5]), torch.full(shape, 10.0, dtype=dtype)
    found = rows / divisors(degrees, rows)
    assert found.dtype == dtype
    assert found.shape == rows.shape
    assert found.reshape(4, -1)[:, -1].tolist() == [5.0, 10.0, 10.0, 2.0]
    assert degrees.tolist() == [2, 0, 1, 5]


def test_an_epoch_is_recorded_step_by_step_and_copy_by_copy() -> None:
    streamed = StreamedModel(
        GNN([SAGE(4, 5)]), [random_topology(60, 300)], equal_vertices(60, 3), budget_bytes=16_000
    )
    x = torch.randn(60, 4, requires_grad=True)
    streamed(x).sum().backward()
    streamed.timeline = recorder = Recorder()
    streamed(x).sum().backward()
    plan = streamed.plan(x).plan
    moves = [each for each in plan.operations if isinstance(each, Move)]
    for kind in ("load", "store"):
        copied = [span.num_bytes for span in recorder.spans if span.lane == kind]
        assert sorted(copied) == sorted(move.num_bytes for move in moves if move.kind == kind)
    steps = [each for each in plan.operations if not isinstance(each, Move) and each.kind != "return"]
    assert len(recorder.of("compute")) == len(steps)
    assert 0 < recorder.busy_s("compute") <= recorder.busy_s(*LANES) <= recorder.seconds


def test_nothing_is_recorded_without_a_recorder_and_a_failed_block_is() -> None:
    with recorded(None, "compute", "transform"):
        pass
    recorder = Recorder()
    with pytest.raises(ValueError, match="stop"), recorded(recorder, "load", "edges", 7):
        raise ValueError("stop")
    assert [(span.lane, span.name, span.num_bytes) for span in recorder.spans] == [("load", "edges", 7)]
    assert 0 <= recorder.spans[0].start_s <= recorder.now_s

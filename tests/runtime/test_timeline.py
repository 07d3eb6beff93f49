"""What ran when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sagann.nn import SAGE
from sagann.plan import equal_vertices
from sagann.plan.steps import Move
from sagann.runtime.streamed import StreamedModel
from sagann.runtime.timeline import LANES, Span, Timeline
from tests.graphs import random_topology


class One(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = SAGE(4, 5)

    def forward(self, hops, x):  # type: ignore[no-untyped-def]
        return self.layer(hops[0], x)


def test_an_epoch_is_recorded_step_by_step_and_copy_by_copy(tmp_path: Path) -> None:
    streamed = StreamedModel(One(), [random_topology(60, 300)], equal_vertices(60, 3), budget_bytes=16_000)
    x = torch.randn(60, 4, requires_grad=True)
    streamed(x).sum().backward()
    streamed.timeline = timeline = Timeline()
    streamed(x).sum().backward()
    plan = streamed.plan(x).plan
    moves = [each for each in plan.operations if isinstance(each, Move)]
    for kind in ("load", "store"):
        copied = [span.num_bytes for span in timeline.spans if span.lane == kind]
        assert sorted(copied) == sorted(move.num_bytes for move in moves if move.kind == kind)
    steps = [each for each in plan.operations if not isinstance(each, Move) and each.kind != "turn"]
    assert len([span for span in timeline.spans if span.lane == "compute"]) == len(steps)
    assert 0 < timeline.busy_s("compute") <= timeline.busy_s(*LANES) <= timeline.seconds
    timeline.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == len(LANES) + len(timeline.spans)
    assert {event["name"] for event in events} >= {"gather 0: 0 to 0", "edges csc: 0 to 0"}


def test_what_is_hidden() -> None:
    timeline = Timeline()
    assert timeline.hidden == 1.0
    timeline.spans = [
        Span(lane="compute", name="", start_s=0.0, seconds=4.0),
        Span(lane="load", name="", start_s=3.0, seconds=2.0),
        Span(lane="store", name="", start_s=4.5, seconds=0.5),
    ]
    assert timeline.seconds == 5.0
    assert timeline.busy_s("load", "store") == 2.0
    assert timeline.hidden == pytest.approx(0.5)

"""What ran when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sagann.errors import MissingDependencyError
from sagann.graph import Topology
from sagann.nn import SAGE
from sagann.plan import equal_vertices
from sagann.plan.steps import Move
from sagann.plan.timeline import LANES, Span, Timeline
from sagann.runtime.forecasting import timeline_files
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.streamed import StreamedModel
from tests.graphs import random_topology


class One(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = SAGE(4, 5)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        result: Tensor = self.layer(hops[0], x)
        return result


@pytest.fixture
def planned() -> Timeline:
    return Timeline([Span(lane="compute", name="transform 0: 0", start_s=0.0, seconds=1.0)])


def test_an_epoch_is_recorded_step_by_step_and_copy_by_copy(tmp_path: Path, planned: Timeline) -> None:
    streamed = StreamedModel(One(), [random_topology(60, 300)], equal_vertices(60, 3), budget_bytes=16_000)
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
    timeline_files.write_trace(tmp_path / "trace.json", {"planned": planned, "measured": recorder})
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == 2 * (1 + len(LANES)) + len(planned.spans) + len(recorder.spans)
    measured = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert {event["name"] for event in measured} >= {"gather 0: 0 to 0", "edges csc: 0 to 0"}
    assert min(event["ts"] for event in measured) == 0.0


def test_a_picture_is_drawn(tmp_path: Path, planned: Timeline) -> None:
    pytest.importorskip("matplotlib")
    timeline_files.write_picture(tmp_path / "timeline.png", {"planned": planned, "measured": Timeline()})
    content = (tmp_path / "timeline.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 5_000


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, planned: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_files, "can_draw", lambda: False)
    with pytest.raises(MissingDependencyError, match=r"sagann\[plots\]"):
        timeline_files.write_picture(tmp_path / "timeline.png", {"planned": planned})

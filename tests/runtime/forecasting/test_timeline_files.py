"""Timelines as traces and as pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sagann.errors import MissingDependencyError
from sagann.plan.timeline import Span, Timeline
from sagann.runtime.forecasting import timeline_files


@pytest.fixture
def planned() -> Timeline:
    return Timeline([Span(lane="compute", name="transform 0: 0", start_s=0.0, seconds=1.0)])


def test_a_trace_has_a_process_for_each_timeline_whose_spans_begin_at_zero(
    tmp_path: Path, planned: Timeline
) -> None:
    spans = [
        Span(lane="load", name="edges csc: 0 to 0", start_s=7.0, seconds=0.5, num_bytes=12),
        Span(lane="compute", name="gather 0: 0 to 0", start_s=7.25, seconds=2.0),
        Span(lane="decisions", name="So it is.", start_s=8.0, seconds=0.0),
    ]
    timeline_files.write_trace(tmp_path / "trace.json", {"planned": planned, "measured": Timeline(spans)})
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["planned", "measured"]
    lanes = ["compute", "load", "decisions"]
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == ["compute", *lanes]
    measured = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert [(event["name"], lanes[event["tid"]], event["ts"], event["dur"]) for event in measured] == [
        ("edges csc: 0 to 0", "load", 0.0, 0.5e6),
        ("gather 0: 0 to 0", "compute", 0.25e6, 2e6),
    ]
    (instant,) = (event for event in events if event["ph"] == "i")
    assert (instant["name"], lanes[instant["tid"]], instant["ts"], instant["s"]) == (
        "So it is.",
        "decisions",
        1e6,
        "t",
    )
    assert [event["args"]["bytes"] for event in measured] == [12, 0]


def test_a_picture_is_drawn(tmp_path: Path, planned: Timeline) -> None:
    pytest.importorskip("matplotlib")
    timeline_files.write_picture(tmp_path / "timeline.png", {"planned": planned, "measured": Timeline()})
    content = (tmp_path / "timeline.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 5_000


def test_a_picture_names_the_run_its_two_halves_and_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    figures = []
    monkeypatch.setattr(timeline_files, "write_figure", lambda path, figure: figures.append(figure))
    spans = [
        Span(lane="compute", name="transform_loss 1: 0", start_s=5.0, seconds=1.0),
        Span(lane="compute", name="gather_grad 0: 0 to 0", start_s=6.0, seconds=2.0),
    ]
    planned = Timeline(spans, memory={"device0": [(5.0, 3 << 20), (6.0, 1 << 20)]})
    timelines = {"planned": planned, "measured": Timeline(spans)}
    timeline_files.write_picture(tmp_path / "a.png", timelines, title="gcn on demo: P = 2", budget_bytes=4 << 20)
    (figure,) = figures
    assert figure.get_suptitle() == "gcn on demo: P = 2"
    lanes, memory, measured = figure.axes
    for axis in (lanes, measured):
        assert {text.get_text().strip(): text.xy[0] for text in axis.texts} == {"forward": 1.0, "backward": 1.0}
    curve, budget = memory.lines
    assert curve.get_xydata().tolist() == [[0, 3], [1, 1], [3, 1]]
    assert set(budget.get_ydata()) == {4.0}
    assert memory.get_ylabel() == "memory, MiB"
    assert [text.get_text().strip() for text in memory.texts] == ["budget"]


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, planned: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagann.storage.picture.can_draw", lambda: False)
    with pytest.raises(MissingDependencyError, match=r"sagann\[plots\]"):
        timeline_files.write_picture(tmp_path / "timeline.png", {"planned": planned})

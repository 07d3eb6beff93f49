"""What a timeline comes to."""

from __future__ import annotations

import pytest

from sagann.plan.timeline import Span, Timeline


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
    assert timeline.bottleneck == "compute"

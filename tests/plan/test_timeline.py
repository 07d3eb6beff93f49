"""What a timeline comes to."""

from __future__ import annotations

from sagann.plan.timeline import Span, Timeline


def test_the_backward_begins_with_its_first_step_and_the_forward_may_overlap() -> None:
    timeline = Timeline()
    assert timeline.turn_s is None
    timeline.spans = [
        Span(lane="compute", name="transform_loss 1: 0", start_s=0.0, seconds=4.0),
        Span(lane="load", name="grad x: 0", start_s=1.0, seconds=2.0),
        Span(lane="compute", name="finish_grad 0: 1", start_s=5.0, seconds=1.0),
        Span(lane="compute", name="prepare_grad 0: 1", start_s=4.0, seconds=1.0),
    ]
    assert timeline.turn_s == (4.0, 4.0)
    timeline.spans.append(Span(lane="compute", name="gather 0: 2 to 1", start_s=6.0, seconds=1.0))
    assert timeline.turn_s == (4.0, 7.0)

"""A device's work is timed by marks, and added to the host's timeline when it is settled."""

from __future__ import annotations

import torch

from sagann.runtime.device.recorder import EventRecorder
from sagann.runtime.recorder import Recorder
from tests.runtime.device.late_streams import LateMark, LateStreams


class ClockedStreams(LateStreams):
    """Streams whose marks are a second apart."""

    def __init__(self) -> None:
        super().__init__()
        self.clock_s = 0.0
        self.finished: list[LateMark] = []

    def mark(self, lane: str) -> LateMark:
        self.clock_s += 1.0
        return super().mark(lane)._replace(at_s=self.clock_s)

    def finish(self, mark: LateMark) -> None:
        self.finished.append(mark)
        super().finish(mark)


def test_spans_are_those_between_marks_on_the_hosts_clock() -> None:
    streams, timeline = ClockedStreams(), Recorder()
    recorder = EventRecorder(streams, timeline)
    offset_s = timeline.now_s
    with recorder.span("compute", "transform 0: 0"), recorder.span("load", "edges", 40):
        pass
    # Nobody waits for the device before the end of the epoch.
    assert len(streams.finished) == 1
    assert timeline.spans == []
    recorder.settle()
    load, compute = timeline.spans
    assert (load.lane, load.name, load.num_bytes, load.seconds) == ("load", "edges", 40, 1.0)
    assert (compute.lane, compute.name, compute.num_bytes, compute.seconds) == ("compute", "transform 0: 0", 0, 3.0)
    assert load.start_s - compute.start_s == 1.0
    assert 1.0 <= compute.start_s <= 1.0 + offset_s
    recorder.settle()
    assert len(timeline.spans) == 2


def test_a_block_that_fails_is_recorded_as_well() -> None:
    timeline = Recorder()
    recorder = EventRecorder(ClockedStreams(), timeline)
    try:
        with recorder.span("compute", "gather 0: 0"):
            raise torch.OutOfMemoryError
    except torch.OutOfMemoryError:
        recorder.settle()
    assert [span.name for span in timeline.spans] == ["gather 0: 0"]

"""Event recorder: a timeline of a device's work, timed by marks in its lanes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sagann.plan.timeline import Lane, Span
from sagann.runtime.device.streams import Mark, Streams
from sagann.runtime.recorder import Recorder


class EventRecorder(Recorder):
    """Spans of one epoch as the device runs them. The host only queues them; :meth:`settle` gives them to the timeline."""

    def __init__(self, streams: Streams, timeline: Recorder) -> None:
        super().__init__()
        self.of_host = timeline
        "Timeline for work of the host."
        self._streams = streams
        self._queued: list[tuple[Span, Mark, Mark]] = []
        "Spans whose times are not known yet, each between two marks."
        # Both clocks are read at one moment.
        self._began = streams.mark("compute")
        streams.finish(self._began)
        self._offset_s = timeline.now_s

    @contextmanager
    def span(self, lane: Lane, name: str, num_bytes: int = 0) -> Iterator[None]:
        """Record the work that is queued in the lane inside the ``with`` block."""
        first = self._streams.mark(lane)
        try:
            yield
        finally:
            span = Span(lane=lane, name=name, start_s=0.0, seconds=0.0, num_bytes=num_bytes)
            self._queued.append((span, first, self._streams.mark(lane)))

    def settle(self) -> None:
        """Wait for the queued work, and give its spans to the timeline. No thread may queue work meanwhile."""
        for span, first, last in self._queued:
            self._streams.finish(last)
            start_s = self._offset_s + self._streams.seconds(self._began, first)
            self.of_host.spans.append(replace(span, start_s=start_s, seconds=self._streams.seconds(first, last)))
        self._queued.clear()

"""Event recorder: a timeline of what a device does, by the marks that it passes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sagann.plan.timeline import Lane, Span
from sagann.runtime.device.streams import Mark, Streams
from sagann.runtime.recorder import Recorder


@dataclass(frozen=True, kw_only=True, slots=True)
class _Queued:
    lane: Lane
    name: str
    num_bytes: int
    first: Mark
    last: Mark


class EventRecorder(Recorder):
    """Spans of one epoch as the device runs them, which the host only queues.

    Args:
        streams: of the device.
        timeline: takes the spans when they are settled.
    """

    def __init__(self, streams: Streams, timeline: Recorder) -> None:
        super().__init__()
        self.of_host = timeline
        "Records what the host does."
        self._streams = streams
        self._queued: list[_Queued] = []
        self._queue_lock = threading.Lock()
        # Both clocks at one moment.
        self._began = streams.mark("compute")
        streams.finish(self._began)
        self._offset_s = timeline.now_s

    @contextmanager
    def span(self, lane: Lane, name: str, num_bytes: int = 0) -> Iterator[None]:
        """Record what is queued in the lane inside the ``with`` block."""
        first = self._streams.mark(lane)
        try:
            yield
        finally:
            last = self._streams.mark(lane)
            with self._queue_lock:
                self._queued.append(_Queued(lane=lane, name=name, num_bytes=num_bytes, first=first, last=last))

    def settle(self) -> None:
        """Wait for what was queued, and give its spans to the timeline."""
        with self._queue_lock:
            queued, self._queued = self._queued, []
        for each in queued:
            self._streams.finish(each.last)
            self.of_host.add(
                Span(
                    lane=each.lane,
                    name=each.name,
                    start_s=self._offset_s + self._streams.seconds(self._began, each.first),
                    seconds=self._streams.seconds(each.first, each.last),
                    num_bytes=each.num_bytes,
                )
            )

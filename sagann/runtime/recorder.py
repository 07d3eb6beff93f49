"""Recorder: a timeline that is written down while a streamed epoch runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sagann.plan.timeline import Lane, Span, Timeline


class Recorder(Timeline):
    """Spans of one or more epochs as they run, from any thread.

    Example:
        >>> recorder = Recorder()
        >>> with recorder.span("compute", "transform 0"):
        ...     pass
        >>> [span.name for span in recorder.spans]
        ['transform 0']
    """

    def __init__(self) -> None:
        super().__init__()
        self._began_s = time.perf_counter()
        self._lock = threading.Lock()

    @property
    def now_s(self) -> float:
        """Seconds since the timeline began."""
        return time.perf_counter() - self._began_s

    def add(self, span: Span) -> None:
        """Add what has run."""
        with self._lock:
            self.spans.append(span)

    @contextmanager
    def span(self, lane: Lane, name: str, num_bytes: int = 0) -> Iterator[None]:
        """Record what runs inside the ``with`` block."""
        start_s = self.now_s
        try:
            yield
        finally:
            seconds = self.now_s - start_s
            self.add(Span(lane=lane, name=name, start_s=start_s, seconds=seconds, num_bytes=num_bytes))


@contextmanager
def recorded(recorder: Recorder | None, lane: Lane, name: str, num_bytes: int = 0) -> Iterator[None]:
    """Record what runs inside the ``with`` block, where there is a recorder."""
    if recorder is None:
        yield
        return
    with recorder.span(lane, name, num_bytes):
        yield

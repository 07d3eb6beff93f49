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

    @contextmanager
    def span(self, lane: Lane, name: str, num_bytes: int = 0) -> Iterator[None]:
        """Record what runs inside the ``with`` block."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            span = Span(
                lane=lane,
                name=name,
                start_s=start_s - self._began_s,
                seconds=time.perf_counter() - start_s,
                num_bytes=num_bytes,
            )
            with self._lock:
                self.spans.append(span)


@contextmanager
def recorded(recorder: Recorder | None, lane: Lane, name: str, num_bytes: int = 0) -> Iterator[None]:
    """Record what runs inside the ``with`` block, where there is a recorder."""
    if recorder is None:
        yield
        return
    with recorder.span(lane, name, num_bytes):
        yield

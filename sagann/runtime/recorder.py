"""Recorder: a timeline that is written while an epoch runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

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

    @property
    def now_s(self) -> float:
        return time.perf_counter() - self._began_s

    @contextmanager
    def span(self, lane: Lane, name: str, num_bytes: int = 0) -> Iterator[None]:
        start_s = self.now_s
        try:
            yield
        finally:
            seconds = self.now_s - start_s
            # A list's append needs no lock.
            self.spans.append(Span(lane=lane, name=name, start_s=start_s, seconds=seconds, num_bytes=num_bytes))

    def add(self, lane: str, name: str, since_s: float, seconds: float) -> None:
        """Record work that began at a time of ``time.perf_counter``."""
        self.spans.append(Span(lane=lane, name=name, start_s=since_s - self._began_s, seconds=seconds))


def recorded(recorder: Recorder | None, lane: Lane, name: str, num_bytes: int = 0) -> AbstractContextManager[None]:
    """Record the ``with`` block, where there is a recorder."""
    return nullcontext() if recorder is None else recorder.span(lane, name, num_bytes)

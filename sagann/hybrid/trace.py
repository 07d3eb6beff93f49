"""Trace: what every stage and every trainer did in the iterations of an epoch, and what was decided meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sagann.storage.durable import write_whole

DECISIONS = "decisions"
"Name of the lane of the decisions about seeds and threads."


class Trace:
    """Spans of iterations as they run, from any thread.

    Example:
        >>> trace = Trace()
        >>> with trace.span("load", "epoch 1, batch 0"):
        ...     pass
        >>> trace.decided("5 seeds go to the processor.")
        >>> trace.lanes
        ['load', 'decisions']
    """

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._events: list[tuple[str, str, float, float | None]] = []
        "Lane, name, start and seconds; None for a decision, which takes no time."

    @contextmanager
    def span(self, lane: str, name: str) -> Iterator[None]:
        """Record the ``with`` block."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self.add(lane, name, start_s, time.perf_counter() - start_s)

    def add(self, lane: str, name: str, start_s: float, seconds: float) -> None:
        """Record work that began at a time of ``time.perf_counter``."""
        # A list's append needs no lock.
        self._events.append((lane, name, start_s - self._began_s, seconds))

    def decided(self, why: str) -> None:
        """Record a decision, in words."""
        self._events.append((DECISIONS, why, time.perf_counter() - self._began_s, None))

    @property
    def lanes(self) -> list[str]:
        """Names of the lanes, in the order in which they were first used."""
        return list(dict.fromkeys(lane for lane, *_ in self._events))

    def write(self, path: Path) -> None:
        """Write the trace in Chrome's format for traces, with a thread for each lane."""
        lanes = self.lanes
        events: list[dict[str, Any]] = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": lane}}
            for thread, lane in enumerate(lanes)
        ]
        for lane, name, start_s, seconds in self._events:
            event = {"name": name, "pid": 0, "tid": lanes.index(lane), "ts": start_s * 1e6}
            # A decision is an instant of its lane.
            event |= {"ph": "i", "s": "t"} if seconds is None else {"ph": "X", "dur": seconds * 1e6}
            events.append(event)
        write_whole(path, json.dumps({"traceEvents": events}).encode())

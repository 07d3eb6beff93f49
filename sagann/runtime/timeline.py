"""Timeline: when each step and each copy of a streamed epoch ran, to be looked at and summed up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sagann.plan.steps import Block, Step
from sagann.storage.durable import write_whole

Lane = Literal["compute", "load", "store"]
LANES: tuple[Lane, ...] = ("compute", "load", "store")
"What runs beside one another."


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Something that ran."""

    lane: Lane
    "Where."
    name: str
    "What."
    start_s: float
    "Since the timeline began."
    seconds: float
    "How long."
    num_bytes: int = 0
    "Copied."


class Timeline:
    """Spans of one or more epochs, from any thread.

    Example:
        >>> timeline = Timeline()
        >>> with timeline.span("compute", "transform 0"):
        ...     pass
        >>> [span.name for span in timeline.spans]
        ['transform 0']
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        "In the order in which they ended."
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

    @property
    def seconds(self) -> float:
        """From the first span's start to the last one's end."""
        if not self.spans:
            return 0.0
        return max(span.start_s + span.seconds for span in self.spans) - min(span.start_s for span in self.spans)

    def busy_s(self, *lanes: Lane) -> float:
        """Time in which at least one of the lanes ran something."""
        total, until = 0.0, 0.0
        for span in sorted((span for span in self.spans if span.lane in lanes), key=lambda span: span.start_s):
            end = span.start_s + span.seconds
            total += max(0.0, end - max(until, span.start_s))
            until = max(until, end)
        return total

    @property
    def hidden(self) -> float:
        """The part of the shorter one of copying and computing that ran beside the other: 1 if all of it did."""
        copies, compute = self.busy_s("load", "store"), self.busy_s("compute")
        shorter = min(copies, compute)
        return 1.0 if not shorter else (copies + compute - self.busy_s(*LANES)) / shorter

    def write(self, path: Path) -> None:
        """Write the spans in Chrome's format for traces, which Perfetto shows as well."""
        events = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": lane}}
            for number, lane in enumerate(LANES)
        ]
        events += [
            {
                "name": span.name,
                "ph": "X",
                "pid": 0,
                "tid": LANES.index(span.lane),
                "ts": span.start_s * 1e6,
                "dur": span.seconds * 1e6,
                "args": {"bytes": span.num_bytes},
            }
            for span in self.spans
        ]
        write_whole(path, json.dumps({"traceEvents": events}).encode())


def step_name(step: Step) -> str:
    """A step in a few words."""
    where = f"{step.interval}" if step.other < 0 else f"{step.interval} to {step.other}"
    return f"{step.kind} {step.number}: {where}"


def block_name(block: Block) -> str:
    """A block in a few words."""
    where = f"{block.interval}" if block.other < 0 else f"{block.interval} to {block.other}"
    return f"{block.kind} {block.name}: {where}"

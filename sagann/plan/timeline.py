"""Timeline: when each step and each copy of a streamed epoch runs, simulated or recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Lane = Literal["compute", "load", "store", "exchange"]
"Kind of work; an exchange is a copy between devices or workers."
_BACKWARD = re.compile(r"\w+_grad\b")
LANES: tuple[Lane, ...] = ("compute", "load", "store")
"Lanes of one device, which run at the same time."


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A recorded or simulated step or copy, or a stage of other work."""

    lane: str
    "Kind of work: a :data:`Lane`, or the name of whoever does other work."
    name: str
    "Name of the step, or of the block that is copied."
    start_s: float
    "Seconds from the start of the timeline to the start of the span."
    seconds: float
    "Duration of the span, in seconds."
    num_bytes: int = 0
    "Bytes that are copied; 0 for a step."
    resource: str = ""
    "Device or link that the span occupies; empty where spans are recorded."


@dataclass(slots=True)
class Timeline:
    """Spans of one or more epochs.

    Example:
        >>> timeline = Timeline()
        >>> timeline.spans.append(Span(lane="compute", name="transform 0", start_s=0.0, seconds=2.0))
        >>> timeline.spans.append(Span(lane="load", name="edges", start_s=1.0, seconds=2.0))
        >>> timeline.seconds, timeline.hidden, timeline.bottleneck
        (3.0, 0.5, 'compute')
    """

    spans: list[Span] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    "Peak bytes of blocks and temporaries of each device; empty where spans are recorded."

    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """Bytes of blocks and temporaries of each device from a second on, until the next pair; empty where spans are recorded."""

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first span to the end of the last one."""
        if not self.spans:
            return 0.0
        return max(span.start_s + span.seconds for span in self.spans) - min(span.start_s for span in self.spans)

    def busy_s(self, *lanes: Lane) -> float:
        """Seconds in which at least one of the lanes is busy."""
        total, until = 0.0, 0.0
        for span in sorted((span for span in self.spans if span.lane in lanes), key=lambda span: span.start_s):
            end = span.start_s + span.seconds
            total += max(0.0, end - max(until, span.start_s))
            until = max(until, end)
        return total

    @property
    def hidden(self) -> float:
        """The share of copying or computing, whichever is shorter, that runs at the same time as the other."""
        copies, compute = self.busy_s("load", "store", "exchange"), self.busy_s("compute")
        shorter = min(copies, compute)
        return 1.0 if not shorter else max(0.0, copies + compute - self.busy_s(*LANES, "exchange")) / shorter

    @property
    def bottleneck(self) -> Lane:
        """The lane that is busy longest."""
        return max(LANES, key=self.busy_s)

    @property
    def turn_s(self) -> tuple[float, float] | None:
        """Seconds in which the first step of the backward begins and the last one of the forward ends; None without a backward.

        Where the loss of one interval is known before others are gathered, the two halves overlap.
        """
        steps = [span for span in self.spans if span.lane == "compute"]
        begin_s = min((span.start_s for span in steps if _BACKWARD.match(span.name)), default=None)
        if begin_s is None:
            return None
        ends = (span.start_s + span.seconds for span in steps if not _BACKWARD.match(span.name))
        return begin_s, max([begin_s, *ends])

    def of(self, lane: Lane) -> Sequence[Span]:
        """The spans of a lane, in the order in which they begin."""
        return sorted((span for span in self.spans if span.lane == lane), key=lambda span: span.start_s)

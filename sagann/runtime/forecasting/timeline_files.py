"""Timelines as files: traces for Chrome or Perfetto, and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sagann.plan.timeline import LANES, Timeline
from sagann.storage.folder import write_whole
from sagann.storage.picture import new_figure, write_figure

_COLOURS = {
    "transform": "#4477aa",
    "transform_loss": "#4477aa",
    "gather": "#228833",
    "transform_grad": "#66ccee",
    "gather_grad": "#ccbb44",
    "edges": "#bbbbbb",
    "value": "#aa3377",
    "grad": "#ee6677",
    "stage_saved": "#882255",
}
"Colour of a span, by the first word of its name."
_OTHER_COLOUR = "#777777"
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def write_trace(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Write timelines, by name, in Chrome's format for traces, each as a process with a thread for each lane that has spans.

    A span of no seconds is an instant.
    """
    events: list[dict[str, Any]] = []
    for number, (name, timeline) in enumerate(timelines.items()):
        used = dict.fromkeys(span.lane for span in timeline.spans)
        lanes = [*(lane for lane in LANES if lane in used), *(lane for lane in used if lane not in LANES)]
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": name}})
        events += [
            {"name": "thread_name", "ph": "M", "pid": number, "tid": thread, "args": {"name": lane}}
            for thread, lane in enumerate(lanes)
        ]
        begin_s = min((span.start_s for span in timeline.spans), default=0.0)
        events += [
            {
                "name": span.name,
                "pid": number,
                "tid": lanes.index(span.lane),
                "ts": (span.start_s - begin_s) * 1e6,
                **({"ph": "X", "dur": span.seconds * 1e6} if span.seconds else {"ph": "i", "s": "t"}),
                "args": {"bytes": span.num_bytes},
            }
            for span in timeline.spans
        ]
    write_whole(path, json.dumps({"traceEvents": events}).encode())


def write_picture(
    path: Path, timelines: Mapping[str, Timeline], *, title: str = "", budget_bytes: int | None = None
) -> None:
    """Draw timelines, by name, below each other on one scale of seconds, as a PNG file; ``budget_bytes`` is a line in the memory.

    Forward and backward are named above the lanes. Below the lanes of a simulated timeline stands the memory that its blocks take.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    heights = [height for timeline in timelines.values() for height in ((1.3, 0.8) if timeline.memory else (1.3,))]
    figure = new_figure(11, 0.8 + sum(heights), feature="a picture of a timeline")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, parse_math=False)
    axes = iter(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    seen: dict[str, str] = {}
    for name, timeline in timelines.items():
        axis = next(axes)
        begin_s = min((span.start_s for span in timeline.spans), default=0.0)
        _draw_lanes(axis, timeline, begin_s, seen)
        axis.set_title(
            f"{name}: {timeline.seconds:.3g} s, {timeline.hidden:.0%} of copying hidden",
            loc="left",
            size=9,
            # Above the names of the two halves.
            pad=14,
        )
        first = axis
        if timeline.memory:
            axis = next(axes)
            _draw_memory(axis, timeline, begin_s, budget_bytes)
    axis.set_xlabel("seconds")
    handles = [first.barh([0], [0], color=colour, label=word) for colour, word in seen.items()]
    figure.legend(handles=handles, loc="outside right upper", fontsize=8, frameon=False)
    write_figure(path, figure)


def _draw_lanes(axis: Any, timeline: Timeline, begin_s: float, seen: dict[str, str]) -> None:
    """Draw the spans of each lane; ``seen`` gets the colours, with the words that they stand for."""
    for height, lane in enumerate(LANES):
        bars: dict[str, list[tuple[float, float]]] = {}
        for span in timeline.of(lane):
            word = span.name.partition(" ")[0]
            colour = _COLOURS.get(word, _OTHER_COLOUR)
            seen.setdefault(colour, word if word in _COLOURS else "other")
            bars.setdefault(colour, []).append((span.start_s - begin_s, span.seconds))
        for colour, places in bars.items():
            axis.broken_barh(places, (height - 0.4, 0.8), facecolors=colour)
    axis.set_yticks(range(len(LANES)), LANES)
    axis.invert_yaxis()
    if timeline.turn_s is not None:
        first_s, last_s = (at_s - begin_s for at_s in timeline.turn_s)
        for at_s in {first_s, last_s}:
            axis.axvline(at_s, color="black", linewidth=0.8, linestyle=":")
        for text, at_s, side in (("forward ", first_s, "right"), (" backward", last_s, "left")):
            # On the upper edge of the lanes.
            axis.annotate(text, (at_s, 1.0), xycoords=("data", "axes fraction"), ha=side, va="bottom", fontsize=8)


def _draw_memory(axis: Any, timeline: Timeline, begin_s: float, budget_bytes: int | None) -> None:
    """Draw the memory of each device over time, in the unit of the largest value."""
    most = max([1, budget_bytes or 0, *(size for curve in timeline.memory.values() for _, size in curve)])
    unit, name = next(each for each in _UNITS if most >= each[0])
    end_s = begin_s + timeline.seconds
    for device, curve in timeline.memory.items():
        times = [at_s - begin_s for at_s, _ in curve] + [end_s - begin_s]
        sizes = [size / unit for _, size in curve]
        axis.step(times, [*sizes, *sizes[-1:]], where="post", linewidth=0.9, label=device)
    if budget_bytes is not None:
        axis.axhline(budget_bytes / unit, color="black", linewidth=0.8, linestyle="--")
        axis.annotate(
            "budget ",
            (1.0, budget_bytes / unit),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="top",
            fontsize=8,
        )
    axis.set_ylim(bottom=0)
    axis.set_ylabel(f"memory, {name}", fontsize=8)
    if len(timeline.memory) > 1:
        axis.legend(fontsize=8, frameon=False)

"""Timelines as files: traces for Chrome or Perfetto, and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sagann.plan.timeline import LANES, Timeline
from sagann.storage.durable import write_whole
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


def write_trace(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Write timelines, by name, in Chrome's format for traces, each as a process."""
    events: list[dict[str, Any]] = []
    for number, (name, timeline) in enumerate(timelines.items()):
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": name}})
        events += [
            {"name": "thread_name", "ph": "M", "pid": number, "tid": thread, "args": {"name": lane}}
            for thread, lane in enumerate(LANES)
        ]
        begin_s = min((span.start_s for span in timeline.spans), default=0.0)
        events += [
            {
                "name": span.name,
                "ph": "X",
                "pid": number,
                "tid": LANES.index(span.lane),
                "ts": (span.start_s - begin_s) * 1e6,
                "dur": span.seconds * 1e6,
                "args": {"bytes": span.num_bytes},
            }
            for span in timeline.spans
        ]
    write_whole(path, json.dumps({"traceEvents": events}).encode())


def write_picture(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Draw timelines, by name, below each other on one scale of seconds, as a PNG file.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = new_figure(11, 0.6 + 1.3 * len(timelines), feature="a picture of a timeline")
    axes = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
    seen: dict[str, str] = {}
    for axis, (name, timeline) in zip(axes, timelines.items(), strict=True):
        begin_s = min((span.start_s for span in timeline.spans), default=0.0)
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
        axis.set_title(
            f"{name}: {timeline.seconds:.3g} s, {timeline.hidden:.0%} of copying hidden", loc="left", size=9
        )
    axes[-1].set_xlabel("seconds")
    handles = [axes[0].barh([0], [0], color=colour, label=word) for colour, word in seen.items()]
    figure.legend(handles=handles, loc="outside right upper", fontsize=8, frameon=False)
    write_figure(path, figure)

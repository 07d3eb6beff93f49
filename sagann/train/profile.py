"""The profile of a streamed run: its last epoch, as planned and as it ran."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from sagann.byte_size import format_bytes
from sagann.errors import SagannError
from sagann.plan.timeline import Timeline
from sagann.runtime.forecasting.forecast import forecast
from sagann.runtime.forecasting.probe import probe
from sagann.runtime.forecasting.timeline_files import write_picture, write_trace
from sagann.runtime.recorder import Recorder
from sagann.storage.picture import can_draw
from sagann.train.run_folder import PICTURE_FILE, PROFILE_FILE
from sagann.train.runner import Runner
from sagann.train.streamed import Streamed


def write_profile(folder: Path, runner: Runner, measured: Recorder, on_message: Callable[[str], None]) -> None:
    """Write a trace of the last epoch into the run folder, and a picture where matplotlib is installed.

    ``runner`` has streamed its model. ``measured`` is the last epoch.
    """
    graph = runner.prepared.graph
    assert graph.features is not None
    assert isinstance(runner, Streamed)
    streamed, streaming = runner.streamed(), runner.streaming
    timelines: dict[str, Timeline] = {"measured": measured}
    title = f"{type(runner.model).__name__} on {graph.name}: budget {format_bytes(streaming.memory_bytes)}"
    try:
        planned = streamed.plan(graph.features, folded=True)
        machine = probe(streaming.spill or Path(tempfile.gettempdir()), runner.device)
        on_disk = streaming.spill is not None
        expected = forecast(planned, machine, on_disk=on_disk, rehearsal=(runner.model, graph))
        timelines = {"planned": expected.timeline, **timelines}
        title += f", P = {planned.plan.num_intervals}"
    except SagannError as error:
        on_message(f"The planned epoch is not in {PROFILE_FILE}: {error}")
    write_trace(folder / PROFILE_FILE, timelines)
    if can_draw():
        write_picture(folder / PICTURE_FILE, timelines, title=title, budget_bytes=streaming.memory_bytes)
    else:
        on_message(f"{PICTURE_FILE} is not drawn: pip install 'sagann[plots]'")

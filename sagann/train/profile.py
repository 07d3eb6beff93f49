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
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph
from sagann.train.run_folder import PICTURE_FILE, PROFILE_FILE
from sagann.train.runner import Streamed


def write_profile(
    folder: Path,
    predictor: Predictor,
    prepared: PreparedGraph,
    measured: Recorder,
    on_message: Callable[[str], None],
) -> None:
    """Write a trace of the last epoch into the run folder, and a picture where matplotlib is installed.

    ``predictor`` has streamed its model over ``prepared``. ``measured`` is the last epoch.
    """
    runner, graph = predictor.runner(prepared), prepared.graph
    assert graph.features is not None
    assert isinstance(runner, Streamed)
    streamed, streaming = runner.streamed(), runner.budget
    timelines: dict[str, Timeline] = {"measured": measured}
    title = f"{type(predictor.model).__name__} on {graph.name}: budget {format_bytes(streaming.memory_bytes)}"
    try:
        planned = streamed.plan(graph.features, folded=True)
        machine = probe(streaming.spill or Path(tempfile.gettempdir()), predictor.device)
        on_disk = streaming.spill is not None
        expected = forecast(planned, machine, on_disk=on_disk, rehearsal=(predictor.model, graph))
        timelines = {"planned": expected.timeline, **timelines}
        title += f", P = {planned.plan.num_intervals}"
    except SagannError as error:
        on_message(f"The planned epoch is not in {PROFILE_FILE}: {error}")
    write_trace(folder / PROFILE_FILE, timelines)
    if can_draw():
        write_picture(folder / PICTURE_FILE, timelines, title=title, budget_bytes=streaming.memory_bytes)
    else:
        on_message(f"{PICTURE_FILE} is not drawn: pip install 'sagann[plots]'")

"""Pictures: figures of matplotlib, which is an extra, written as PNG files whole or not at all."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sagann.errors import MissingDependencyError
from sagann.storage.folder import write_whole


def can_draw() -> bool:
    """Whether matplotlib is installed, which :func:`new_figure` needs."""
    return find_spec("matplotlib") is not None


def require_drawing(feature: str) -> None:
    """Raise a MissingDependencyError for ``feature`` unless matplotlib is installed."""
    if not can_draw():
        raise MissingDependencyError("matplotlib", extra="plots", feature=feature)


def new_figure(width: float, height: float, *, feature: str) -> Any:
    """A figure of some inches that needs no screen. ``feature`` says what needs it, for a MissingDependencyError."""
    require_drawing(feature)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(path: Path, figure: Any) -> None:
    """Write a figure as a PNG file; an existing file is replaced."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    write_whole(path, buffer.getvalue())

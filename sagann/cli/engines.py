"""Engines by the name that --engine gives."""

from __future__ import annotations

from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga.engine import Engine, NaiveEngine


def engine_named(name: str) -> Engine:
    """A new engine: one of ``sagann.cli.settings.ENGINES``."""
    return NaiveEngine() if name == "naive" else CompiledEngine(lean=name == "lean")

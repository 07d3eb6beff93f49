"""Work that cannot fit memory is refused before it starts; the system would kill it without a message."""

from __future__ import annotations

from sagann.byte_size import format_bytes
from sagann.cli.run_settings import ENGINES, RunSettings
from sagann.errors import InputError
from sagann.free_space import memory
from sagann.graph import Graph
from sagann.saga.engine import using_engine
from sagann.train.least_bytes import least_bytes
from sagann.train.resources import resolve_device


def check_memory(settings: RunSettings, graph: Graph) -> None:
    """Refuse a run whose least memory is more than there is. CUDA devices refuse by themselves.

    Raises:
        InputError: the run cannot fit memory.
    """
    if resolve_device(settings.train.device).type != "cpu":
        return
    model, is_streamed = settings.model, settings.train.memory is not None
    with using_engine(settings.new_engine()):
        needed_bytes = least_bytes(model, graph, is_streamed=is_streamed)
    ways = ["a smaller --hidden", "fewer --layers", "--encoder linear for sparse features", "more memory"]
    if settings.engine != ENGINES[0]:
        ways.insert(0, f"--engine {ENGINES[0]}")
    elif not is_streamed:
        ways.insert(0, "--memory, which streams the run")
    refuse_beyond_memory(
        needed_bytes,
        where=f"{model.model}, {model.layers} layers, hidden {model.hidden}, for {graph.num_classes} classes on "
        f"{graph.num_vertices} vertices and {graph.num_edges} edges",
        fix=f"If there are too many classes, number them from 0 without gaps. Else use {', '.join(ways[:-1])}, or {ways[-1]}.",
    )


def refuse_beyond_memory(needed_bytes: int, *, where: str, fix: str) -> None:
    """Refuse work that needs more memory than this process may still take.

    Raises:
        InputError: the work needs more.
    """
    usable_bytes = memory().usable_bytes
    if usable_bytes is not None and needed_bytes > usable_bytes:
        raise InputError(
            "the work does not fit memory",
            value=f"at least {format_bytes(needed_bytes)} are needed, {format_bytes(usable_bytes)} are free",
            where=where,
            fix=fix,
        )

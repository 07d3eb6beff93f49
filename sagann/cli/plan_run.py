"""The work of ``sagann plan``: the model on a few vertices of the graph, and the programs that came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sagann.cli.options import Given, Shared
from sagann.cli.plan_streaming import Wish, show_streaming
from sagann.cli.prepare import open_checked
from sagann.cli.run_settings import RunSettings, merge, read_tables, settings_of
from sagann.compiler import LayerProgram
from sagann.compiler.explain import explain
from sagann.graph import Graph
from sagann.graph.subgraph import subgraph
from sagann.kernels.edge.cpu import source_of
from sagann.nn import build_model
from sagann.report.terminal import Terminal
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import SagaLayer
from sagann.saga.engine import using_engine
from sagann.saga.hops import count_hops
from sagann.train.preparation import features_as, parameter_dtype, prepared_by
from sagann.train.run_folder import is_of_run

# Programs do not depend on the number of rows; a few show all that a training step compiles.
NUM_VERTICES = 16


def plan_run(given: Given, *, show: str, streaming: Wish | None, file: Path | None, shared: Shared) -> int:
    """Print the layer programs of a model; the exit code.

    Args:
        given: settings of data and model from the command line.
        show: 'program', or 'kernels' for their source as well.
        streaming: what is shown of it, instead.
        file: a TOML file of settings.
        shared: options that every command has.
    """
    terminal = Terminal(quiet=shared.quiet)
    tables = {} if file is None else read_tables(file)
    settings = settings_of(merge(tables, given), stored="data" not in given and is_of_run(file))
    if ".py:" in settings.model.model:
        shared.user_files.add(settings.model.model.rpartition(":")[0])
    if streaming is not None:
        with streaming.large_arrays():
            model, graph = _opened(settings)
            graph = prepared_by(model, graph)
        show_streaming(terminal, model, graph, streaming)
        return 0
    model, graph = _opened(settings)
    engine = CompiledEngine()
    with using_engine(engine):
        _step(model, graph)
    for name, module in model.named_modules():
        if isinstance(module, SagaLayer):
            for program in engine.programs_of(module):
                _show(terminal, name or "the model", program, with_source=show == "kernels")
    return 0


def _opened(settings: RunSettings) -> tuple[Any, Graph]:
    graph = open_checked(settings.data, keep_splits=False)
    model = build_model(settings.model, graph)
    return model, features_as(graph, parameter_dtype(model))


def _step(model: Any, graph: Graph) -> None:
    """Run the model forward and backward on a few vertices, so that everything is compiled."""
    graph = prepared_by(model, graph)
    if graph.features is not None:
        graph = subgraph(graph, torch.arange(min(NUM_VERTICES, graph.num_vertices)))
    out = model(graph.hops(count_hops(model)), graph.in_memory().features)
    out.sum().backward()


def _show(terminal: Terminal, name: str, program: LayerProgram | str, *, with_source: bool) -> None:
    if isinstance(program, str):
        terminal.show(f"{name}: runs as it is written, because {program}\n")
        return
    terminal.show(f"{name}, {explain(program)}\n")
    for either in (program, program.maps_last) if with_source else ():
        if either is not None and either.edges.function is not None:
            terminal.show(source_of(either.edges.function))
            for step in either.edges.backward.derived if either.edges.backward else ():
                terminal.show(source_of(step.function))

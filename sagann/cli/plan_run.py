"""The work of ``sagann plan``: the program of each layer, how an epoch is streamed within a budget, or what one of mini-batches takes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sagann.byte_size import format_bytes, parse_bytes
from sagann.cli.fit_memory import check_memory
from sagann.cli.options import Given, Shared
from sagann.cli.prepare import open_checked, training_graph, with_held_out, with_task
from sagann.cli.run_settings import chosen_settings, new_engine, read_text, require_nothing_of_workers
from sagann.compiler import LayerProgram
from sagann.compiler.explain import explain
from sagann.config import LINK_TASK, RunConfig
from sagann.errors import InputError
from sagann.free_space import nearest_folder
from sagann.graph import Graph
from sagann.graph.large_arrays import made_by
from sagann.graph.subgraph import subgraph
from sagann.kernels.edge.cpu import source_of
from sagann.nn import build_model
from sagann.plan.machine import Machine
from sagann.report.plan_text import forecast_text, plan_text, resident_text, steps_text
from sagann.report.sampled_plan_text import sampled_plan_text
from sagann.report.terminal import Terminal
from sagann.runtime.blocks.spill import Scratch
from sagann.runtime.forecasting.forecast import forecast
from sagann.runtime.forecasting.probe import probe
from sagann.runtime.forecasting.resident import expected_resident, resident_bytes
from sagann.runtime.forecasting.timeline_files import write_picture
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.loading import GraphBatches
from sagann.runtime.processor import num_cores, processor_name
from sagann.runtime.streaming.stream import foretell
from sagann.saga import SagaLayer
from sagann.saga.engine import using_engine
from sagann.saga.layer import count_hops
from sagann.storage.picture import require_drawing
from sagann.train import Trainer
from sagann.train.preparation import features_as, parameter_dtype, prepared_by
from sagann.train.resources import resolve_device
from sagann.train.run_folder import RUNS, is_of_run
from sagann.train.streaming import Streaming

# Programs do not depend on the number of rows; a few rows show everything that a training step compiles.
NUM_VERTICES = 16


_PROGRAMS, _STREAMED = "the programs of layers", "an epoch within a budget (--memory)"
_SAMPLED, _TRAINERS, _PARTS = "mini-batches (--sample)", "several trainers (--devices)", "workers (--workers)"
_READ_BY = {
    "--show kernels": (_PROGRAMS,),
    "--show steps": (_STREAMED,),
    "--picture": (_STREAMED,),
    "--machine": (_STREAMED, _TRAINERS),
    "--learned": (_PARTS,),
}
"Plans that read an option of the command."


def plan_run(
    given: Given,
    file: Path | None,
    shared: Shared,
    *,
    show: str,
    machine_file: Path | None,
    picture: Path | None,
    learned: Path | None,
) -> None:
    """Explain what ``sagann train`` would do; ``given`` are its settings on the command line, ``file`` is ``--config``."""
    of_run = is_of_run(file)
    settings = chosen_settings(given, file, of_run=of_run)
    shared.add_user_file(settings.model.model)
    plan = _plan_of(settings)
    for name in (f"--show {show}", machine_file and "--machine", picture and "--picture", learned and "--learned"):
        if name in _READ_BY and plan not in _READ_BY[name]:
            raise InputError(
                f"an option has no effect on this plan: {name}, and the plan is of {plan} (in sagann plan)",
                hint=f"Leave {name} out, or plan {' or '.join(_READ_BY[name])}.",
            )
    if plan != _PARTS:
        require_nothing_of_workers(given)
    if plan == _PROGRAMS:
        show_programs(settings, shared, with_source=show == "kernels")
    elif plan == _STREAMED:
        show_streaming(settings, shared, with_steps=show == "steps", machine_file=machine_file, picture=picture)
    elif plan == _SAMPLED:
        show_sampled(settings, shared)
    elif plan == _TRAINERS:
        # Imported here, as below: most plans are of one trainer.
        from sagann.cli.plan_hybrid import show_hybrid

        show_hybrid(settings, shared, machine_file=machine_file)
    else:
        from sagann.cli.plan_workers import show_workers

        show_workers(settings, shared, learned=learned, run_dir=file.parent if file and of_run else None)


def _plan_of(settings: RunConfig) -> str:
    train = settings.train
    if settings.workers > 1:
        return _PARTS
    if train.sample is not None:
        return _SAMPLED if train.devices is None else _TRAINERS
    return _PROGRAMS if train.memory is None else _STREAMED


def show_programs(settings: RunConfig, shared: Shared, *, with_source: bool) -> None:
    """Print the layer programs of a model, and the source of their kernels if ``with_source``."""
    terminal = shared.terminal()
    resolve_device(settings.train.device)
    model, graph = _opened(settings, shared)
    engine = CompiledEngine()
    with using_engine(engine):
        _step(model, graph)
    for name, module in model.named_modules():
        if isinstance(module, SagaLayer):
            for program in engine.programs_of(module):
                _show(terminal, name or "the model", program, with_source=with_source)


def show_streaming(
    settings: RunConfig, shared: Shared, *, with_steps: bool, machine_file: Path | None, picture: Path | None
) -> None:
    """Print the plan of an epoch within a budget, and its forecast."""
    memory, spill = settings.train.memory, settings.train.spill
    assert memory is not None
    budget_bytes = parse_bytes(memory, where="--memory")
    terminal = shared.terminal()
    loaded_bytes = resident_bytes()
    # Training makes the folder on the same disk.
    folder = nearest_folder(Path(spill or RUNS).absolute())
    with made_by(Scratch(folder)):
        model, opened = _opened(settings, shared)
        graph = prepared_by(model, opened)
    if picture is not None:
        _check_picture(picture)
    device = resolve_device(settings.train.device)
    machine = None if machine_file is None else machine_in(machine_file, device)
    model = model.to(device)
    # For a CUDA device, blocks go to the host's memory unless a folder is named.
    on_disk = device.type == "cpu" or spill is not None
    terminal.say("Planning ...")
    # A loss of links needs the rows of all vertices.
    folded = settings.train.task != LINK_TASK
    planned = foretell(model, graph, budget_bytes=budget_bytes, folded=folded, device=device, on_disk=on_disk)
    terminal.show(plan_text(planned, on_disk=on_disk))
    if loaded_bytes is not None and device.type == "cpu":
        expected_memory = expected_resident(
            model,
            (opened, graph),
            loaded_bytes=loaded_bytes,
            budget_bytes=planned.plan.peak_bytes,
            num_vertices=graph.num_vertices,
        )
        terminal.show(resident_text(expected_memory))
    if with_steps:
        terminal.show(steps_text(planned.plan))
    if machine is None:
        terminal.say("Measuring this machine, and timing steps of the plan ...")
        machine = probe(folder, device)
        expected = forecast(planned, machine, on_disk=on_disk, rehearsal=(model, graph))
    else:
        if spill is not None:
            terminal.say(f"--spill {spill} is ignored: the disk's rates are those of {machine_file}.")
        expected = forecast(planned, machine, on_disk=on_disk, features=graph.features)
    terminal.show(forecast_text(expected))
    if picture is not None:
        data, kind = Path(settings.data.data).stem, settings.model.model.rpartition(":")[2]
        title = f"{kind} on {data}: budget {format_bytes(budget_bytes)}, P = {planned.plan.num_intervals}"
        write_picture(picture, {"planned": expected.timeline}, title=title, budget_bytes=budget_bytes)


def show_sampled(settings: RunConfig, shared: Shared) -> None:
    """Print the forecast of an epoch of mini-batches."""
    terminal, config = shared.terminal(), settings.train
    streaming = Streaming.of(config, None, device=resolve_device(config.device), trains=False)
    with nullcontext() if streaming is None else streaming.large_arrays():
        graph = training_graph(settings.data, task=config.task, seed=config.seed, say=terminal.say)
    check_memory(settings, graph)
    terminal.say("Sampling, loading and training a few mini-batches ...")
    # The values of the graph were checked when it was opened.
    shared.load_compiler()
    trainer = Trainer(settings.model, graph, config, validate=False)
    with using_engine(new_engine(settings)):
        processor = f"{num_cores()} cores of {processor_name()}"
        terminal.show(sampled_plan_text(trainer.foretell(), processor=processor))


def machine_in(path: Path, device: torch.device) -> Machine:
    """The machine that a file describes.

    A file with rates of copies to a device is refused where the processor computes, and one without where a device does.
    """
    found = Machine.from_toml(read_text(path, what="machine file"), where=str(path))
    of_device = found.host_to_device_bytes is not None
    if of_device == (device.type != "cpu"):
        return found
    if of_device:
        value, hint = "copies to a device have rates", "Add --device cuda, name a file of `sagann machine`"
    else:
        value, hint = "copies to a device have no rates", "Name a file of `sagann machine --device cuda`"
    raise InputError(
        f"machine file is for another kind of device: {value}, and --device is {device} (in {path})",
        hint=f"{hint}, or leave --machine out: this machine is measured then.",
    )


def _opened(settings: RunConfig, shared: Shared) -> tuple[Any, Graph]:
    graph, say = open_checked(settings.data, keep_splits=False), shared.terminal().say
    graph = with_task(graph, settings.data, settings.train.task, say)
    unit = graph.answers.unit
    settings.train.require_effect(of_graphs=unit == "graph", of_links=unit == "link")
    if settings.train.task == LINK_TASK:
        graph = with_held_out(graph, settings.data.split, seed=settings.train.seed, say=say)
    shared.load_compiler()
    model = build_model(settings.model, graph)
    return model, features_as(graph, parameter_dtype(model))


def _step(model: Any, graph: Graph) -> None:
    """Run the model forward and backward on a few vertices, so that everything is compiled."""
    graph = prepared_by(model, graph)
    if graph.answers.unit == "graph":
        batch = GraphBatches(graph, graphs=None).load(torch.arange(1))
        model(batch.hops(count_hops(model)), batch.features, batch.graph_ptr).sum().backward()
        return
    graph = replace(graph, links=None)
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


def _check_picture(path: Path) -> None:
    require_drawing("--picture")
    if path.suffix != ".png" or not path.absolute().parent.is_dir():
        raise InputError(
            f"picture cannot be written: '{path}', expected a file that ends in .png, in a folder that exists "
            "(in --picture)",
            hint="Name such a file.",
        )

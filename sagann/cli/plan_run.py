"""The work of ``sagann plan``: the run is made as ``sagann train`` makes it, and explained instead of trained."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from sagann.byte_size import format_bytes
from sagann.cli.options import Given, Shared
from sagann.cli.plan_trainers import described_machine, require_vertices, show_trainers
from sagann.cli.result_file import check_target
from sagann.cli.run_settings import chosen_settings, new_engine, require_nothing_of_workers
from sagann.cli.train_run import made_trainer, opened_graph
from sagann.compiler import LayerProgram
from sagann.compiler.explain import explain
from sagann.config import RunConfig
from sagann.errors import CheckpointError, InputError, first_line
from sagann.free_space import nearest_folder
from sagann.graph import Graph
from sagann.graph.renumber import subgraph
from sagann.kernels.edge.cpu import source_of
from sagann.partition import part_of, vertex_ranges
from sagann.plan.machine import Machine
from sagann.report.plan_text import (
    batches_text,
    cost_model_table,
    costs_text,
    forecast_text,
    parts_table,
    plan_text,
    resident_text,
    routes_text,
    steps_text,
)
from sagann.report.progress import ProgressReporter
from sagann.report.terminal import Terminal
from sagann.runtime.forecasting.forecast import forecast
from sagann.runtime.forecasting.probe import probe
from sagann.runtime.forecasting.resident import expected_resident, resident_bytes
from sagann.runtime.forecasting.timeline_files import write_picture
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.loading import GraphBatches
from sagann.runtime.processor import num_cores, processor_name
from sagann.runtime.streaming.stream import foretell, foretell_devices
from sagann.runtime.streaming.streamed import why_queued
from sagann.saga import SagaLayer
from sagann.saga.engine import using_engine
from sagann.saga.layer import count_hops
from sagann.storage.picture import require_drawing
from sagann.train import Trainer
from sagann.train.balancer import learned_costs
from sagann.train.resources import resolve_device
from sagann.train.run_folder import RUNS, is_of_run
from sagann.train.streamed import Streaming
from sagann.train.trainable import require_divisible

_PROGRAMS, _STREAMED = "the programs of layers", "an epoch within a budget (--memory)"
_SAMPLED, _TRAINERS, _PARTS = "mini-batches (--sample)", "several trainers (--devices)", "workers (--workers)"
_DEALT = "an epoch within a budget on devices of a described machine (--memory, --machine, --devices 8)"
_READ_BY = {
    "--show kernels": (_PROGRAMS,),
    "--show steps": (_STREAMED, _DEALT),
    "--picture": (_STREAMED,),
    "--machine": (_STREAMED, _TRAINERS, _DEALT),
    "--kernel": (_TRAINERS,),
    "--learned": (_PARTS,),
}
"Plans that read an option of the command."
# Programs do not depend on the number of rows; a few rows show everything that a training step compiles.
_FEW_VERTICES = 16
_WAY_IN = re.compile(r"device(\d{1,4})\.copy_in")


def plan_run(
    given: Given,
    file: Path | None,
    shared: Shared,
    *,
    show: str,
    machine_file: Path | None,
    kernel: str | None,
    picture: Path | None,
    learned: Path | None,
) -> None:
    """Explain what ``sagann train`` would do; ``given`` are its settings on the command line, ``file`` is ``--config``."""
    of_run = is_of_run(file)
    # Without mini-batches, the number of devices of a described machine.
    devices = str(given.get("devices") or "")
    count = int(devices) if re.fullmatch(r"\d{1,4}", devices) else 0
    if count:
        given = {name: value for name, value in given.items() if name != "devices"}
    settings = chosen_settings(given, file, of_run=of_run)
    shared.add_user_file(settings.model.model)
    train, plan = settings.train, _PARTS
    if settings.workers == 1 and train.sample is not None:
        plan = _SAMPLED if train.devices is None else _TRAINERS
    elif settings.workers == 1:
        plan = _PROGRAMS if train.memory is None else _DEALT if count else _STREAMED
    if count and (plan != _DEALT or machine_file is None):
        raise InputError(
            f"a number of devices is planned on a machine that is described, within a budget: {count} (in --devices)",
            hint="Add --machine p100x8, or a file of your own, and --memory, the budget of each device; leave --sample and --workers out.",
        )
    for name in (
        f"--show {show}",
        machine_file and "--machine",
        kernel and "--kernel",
        picture and "--picture",
        learned and "--learned",
    ):
        if name in _READ_BY and plan not in _READ_BY[name]:
            raise InputError(
                f"an option has no effect on this plan: {name}, and the plan is of {plan} (in sagann plan)",
                hint=f"Leave {name} out, or plan {' or '.join(_READ_BY[name])}.",
            )
    if plan != _PARTS:
        require_nothing_of_workers(given)
    run = PlannedRun(settings, shared)
    if plan == _PROGRAMS:
        run.show_programs(with_source=show == "kernels")
    elif plan == _STREAMED:
        run.show_streaming(with_steps=show == "steps", machine_file=machine_file, picture=picture)
    elif plan == _DEALT and machine_file is not None:
        run.show_devices(count, with_steps=show == "steps", machine_file=machine_file)
    elif plan == _SAMPLED:
        run.show_batches()
    elif plan == _TRAINERS:
        show_trainers(run, machine_file=machine_file, kernel=kernel)
    else:
        run.show_parts(learned=learned, run_dir=file.parent if file and of_run else None)


class PlannedRun:
    """A run that is explained."""

    def __init__(self, settings: RunConfig, shared: Shared) -> None:
        self.shared, self.terminal = shared, shared.terminal()
        # Workers plan their parts without the devices of their machines.
        self.device = resolve_device("cpu" if settings.workers > 1 else settings.train.device)
        # Training makes the folder on the same disk.
        self.folder = nearest_folder(Path(settings.train.spill or RUNS).absolute())
        spill = settings.train.spill and str(self.folder)
        self.settings = replace(settings, train=replace(settings.train, spill=spill))

    def opened(self) -> Graph:
        """The graph with its split, as training opens it."""
        streaming = Streaming.of(self.settings.train, self.folder, device=self.device)
        return opened_graph(self.settings, streaming, say=self.terminal.say)

    def trainer(self, graph: Graph, *, device: str | None = None) -> Trainer:
        """The Trainer of the run, or of the same run on another device."""
        train = self.settings.train
        return made_trainer(
            replace(self.settings, train=replace(train, device=device or train.device)),
            graph,
            self.shared,
            run_dir=self.folder,
            reporter=ProgressReporter(self.terminal.err),
        )

    def show_programs(self, *, with_source: bool) -> None:
        """Print the layer programs of the model, and the source of their kernels if ``with_source``."""
        trainer, engine = self.trainer(self.opened(), device="cpu"), CompiledEngine()
        with using_engine(engine):
            _step(trainer.model, trainer.prepared.graph)
        for name, module in trainer.model.named_modules():
            if isinstance(module, SagaLayer):
                for program in engine.programs_of(module):
                    _show(self.terminal, name or "the model", program, with_source=with_source)

    def show_streaming(self, *, with_steps: bool, machine_file: Path | None, picture: Path | None) -> None:
        """Print the plan of an epoch within a budget, and its forecast."""
        show, say, spill = self.terminal.show, self.terminal.say, self.settings.train.spill
        loaded_bytes = resident_bytes()
        if picture is not None:
            check_target(picture, (".png",), overwrite=True, option="--picture")
            require_drawing("--picture")
        machine = None if machine_file is None else machine_in(machine_file, self.device)
        trainer = self.trainer(self.opened())
        model, graph = trainer.model, trainer.prepared.graph
        # For a CUDA device, blocks go to the host's memory unless a folder is named.
        on_disk = self.device.type == "cpu" or spill is not None
        say("Planning ...")
        streaming = Streaming.of(trainer.config, self.folder, device=self.device)
        assert streaming is not None
        if picture is not None and machine is None and streaming.devices:
            raise InputError(
                "a picture of several devices needs the rates of a machine: --picture without --machine (in --device)",
                hint="Add --machine, with links between the devices, or leave --picture out.",
            )
        budget_bytes = streaming.memory_bytes
        # A loss of links needs the rows of all vertices.
        folded = graph.answers.unit == "vertex"
        devices = ",".join(map(str, streaming.devices or [self.device]))
        planned = foretell(model, graph, budget_bytes=budget_bytes, folded=folded, device=devices, on_disk=on_disk)
        show(plan_text(planned, on_disk=on_disk))
        if self.device.type != "cpu":
            assert graph.features is not None
            cause = why_queued(planned, graph.features, on_disk=on_disk)
            show(
                f"Epochs are {'' if cause is None else 'not '}replayed as CUDA graphs{'' if cause is None else f', because {cause}'}."
            )
        if loaded_bytes is not None and self.device.type == "cpu":
            resident = expected_resident(
                model,
                (trainer.graph, graph),
                loaded_bytes=loaded_bytes,
                budget_bytes=planned.plan.peak_bytes,
                num_vertices=graph.num_vertices,
            )
            show(resident_text(resident))
        if with_steps:
            show(steps_text(planned.plan))
        if machine is None and streaming.devices:
            say(
                "No time is estimated, because copies between devices are not measured here: describe them with --machine."
            )
            return
        if machine is None:
            say("Measuring this machine, and timing steps of the plan ...")
            machine = probe(self.folder, self.device)
            expected = forecast(planned, machine, on_disk=on_disk, rehearsal=(model, graph))
        else:
            if spill is not None:
                say(f"The disk of --spill is not measured: its rates are taken from {machine_file}.")
            expected = forecast(planned, machine, on_disk=on_disk, features=graph.features)
        show(forecast_text(expected))
        if picture is not None:
            data, kind = Path(self.settings.data.data).stem, self.settings.model.model.rpartition(":")[2]
            title = f"{kind} on {data}: budget {format_bytes(budget_bytes)}, P = {planned.plan.num_intervals}"
            write_picture(picture, {"planned": expected.timeline}, title=title, budget_bytes=budget_bytes)

    def show_devices(self, count: int, *, with_steps: bool, machine_file: Path) -> None:
        """Print the plan of an epoch on the first devices of a described machine, each with the budget, and its routes."""
        machine = described_machine(machine_file)
        known = 1 + max((int(at[1]) for name in machine.links if (at := _WAY_IN.fullmatch(name))), default=0)
        if machine.host_to_device_bytes is None or count > known:
            raise InputError(
                f"the machine has not so many devices: {count} of {known if machine.host_to_device_bytes else 0}, {machine.name} (in --devices)",
                hint='Name fewer, or add [links."device1.copy_in"] and so on to the machine\'s file, with host_to_device_bytes.',
            )
        names = [f"device{number}" for number in range(count)]
        trainer = self.trainer(self.opened(), device="cpu")
        self.terminal.say("Planning ...")
        found = foretell_devices(
            trainer.model,
            trainer.prepared.graph,
            budget_bytes=self.settings.train.memory_bytes or 0,
            folded=trainer.prepared.graph.answers.unit == "vertex",
            machine=machine,
            devices=names,
        )
        self.terminal.show(plan_text(found[0].planned, on_disk=False))
        if with_steps:
            self.terminal.show(steps_text(found[0].planned.plan))
        self.terminal.show(routes_text(found, machine, names))

    def show_batches(self) -> None:
        """Print the forecast of an epoch of mini-batches."""
        graph = self.opened()
        self.terminal.say("Sampling, loading and training a few mini-batches ...")
        trainer = self.trainer(graph)
        with using_engine(new_engine(self.settings)):
            found = trainer.foretell()
        self.terminal.show(batches_text(found, processor=f"{num_cores()} cores of {processor_name()}"))

    def show_parts(self, *, learned: Path | None, run_dir: Path | None) -> None:
        """Print the parts of the workers, and the cost model of the run ``learned``, or of the run in ``run_dir`` that the settings are of."""
        show, say = self.terminal.show, self.terminal.say
        size, balance = self.settings.workers, self.settings.balance
        require_divisible(self.settings.train, balance=balance)
        if self.settings.train.memory is not None:
            say("Streaming within --memory is planned for one process only: leave --workers out.")
        costs = None if learned is None else learned_costs(learned)
        if costs is None and run_dir is not None and balance == "cost":
            try:
                costs = learned_costs(run_dir)
            except CheckpointError as error:
                say(f"The run gives no cost model: {first_line(error)}")
        graph = self.opened()
        require_vertices(graph, "--workers")
        topology = self.trainer(graph, device="cpu").prepared.graph.topology
        if costs is None:
            if balance == "cost":
                say("Without a cost model (--learned), parts begin with equal edges, and move after some epochs.")
            bounds, seconds = vertex_ranges(topology.indptr, size, balance), None
        else:
            features, fitting = costs.count(topology), costs.model_for(size)
            divisions: dict[str, tuple[int, ...]] = {
                name: vertex_ranges(topology.indptr, size, by=name) for name in ("edges", "vertices")
            }
            divisions["cost"] = costs.bounds(features, size)
            predicted = {
                name: fitting.seconds_of_parts(features, costs.operations, each) for name, each in divisions.items()
            }
            bounds, seconds = divisions[balance], predicted[balance]
        show(parts_table([part_of(topology, bounds, rank) for rank in range(size)], seconds, balance=balance))
        if costs is not None:
            show(cost_model_table(costs.model, costs.operations))
            show(costs_text(costs.model, {name: max(each) for name, each in predicted.items()}))
            if said := costs.unknown_text(size):
                say(said)


def machine_in(file: Path, device: torch.device) -> Machine:
    """The described machine, with rates of copies to a device where a device computes, and without where the processor does."""
    found = described_machine(file)
    of_device = found.host_to_device_bytes is not None
    if of_device == (device.type != "cpu"):
        return found
    if of_device:
        value, hint = "copies to a device have rates", "Add --device cuda, name a file of `sagann machine`"
    else:
        value, hint = "copies to a device have no rates", "Name a file of `sagann machine --device cuda`"
    raise InputError(
        f"machine file is for another kind of device: {value}, and --device is {device} (in {file})",
        hint=f"{hint}, or leave --machine out: this machine is measured then.",
    )


def _step(model: nn.Module, graph: Graph) -> None:
    """Run the model forward and backward on a few vertices of a prepared graph, so that everything is compiled."""
    if graph.answers.unit == "graph":
        batch = GraphBatches(graph, graphs=None).load(torch.arange(1))
        model(batch.hops(count_hops(model)), batch.features, batch.graph_ptr).sum().backward()
        return
    graph = replace(graph, links=None)
    if graph.features is not None:
        graph = subgraph(graph, torch.arange(min(_FEW_VERTICES, graph.num_vertices)))
    model(graph.hops(count_hops(model)), graph.in_memory().features).sum().backward()


def _show(terminal: Terminal, name: str, program: LayerProgram | str, *, with_source: bool) -> None:
    if isinstance(program, str):
        terminal.show(f"{name}: runs as it is written, because {program}\n")
        return
    terminal.show(f"{name}, {explain(program)}\n")
    for either in (program, program.maps_last) if with_source else ():
        if either is not None and either.edges.function is not None:
            terminal.show(source_of(either.edges.function))
            for step in sum(either.edges.derived.values(), ()):
                terminal.show(source_of(step.function))

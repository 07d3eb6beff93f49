"""The work of ``sagann plan``: the run is made as ``sagann train`` makes it, and explained instead of trained."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch

from sagann.byte_size import format_bytes
from sagann.cli.options import Given, Shared
from sagann.cli.plan_machine import best_split_on, described_machine, machine_in, machine_of_equations
from sagann.cli.result_file import check_target
from sagann.cli.run_settings import chosen_settings, new_engine, require_nothing_of_workers
from sagann.cli.train_run import made_trainer, opened_graph
from sagann.compiler.explain import explain
from sagann.config import RunConfig
from sagann.errors import InputError
from sagann.free_space import nearest_folder
from sagann.graph import Graph
from sagann.graph.graph import task_of
from sagann.graph.renumber import subgraph
from sagann.hybrid.devices import Devices
from sagann.hybrid.forecast import accelerator_names
from sagann.kernels.edge.cpu import source_of
from sagann.options import refuse
from sagann.partition import part_of, vertex_ranges
from sagann.report.plan_text import (
    batches_text,
    costs_text,
    forecast_text,
    parts_table,
    plan_text,
    resident_text,
    routes_text,
    steps_text,
    trainers_text,
)
from sagann.report.progress import ProgressReporter
from sagann.runtime.forecasting.forecast import forecast
from sagann.runtime.forecasting.probe import probe
from sagann.runtime.forecasting.resident import expected_resident, resident_bytes
from sagann.runtime.forecasting.timeline_files import write_picture
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.loading import GraphBatches
from sagann.runtime.processor import num_cores, processor_name
from sagann.runtime.streaming.stream import foretell, foretell_devices
from sagann.saga import SagaLayer
from sagann.saga.engine import using_engine
from sagann.saga.layer import count_hops
from sagann.storage.picture import require_drawing
from sagann.train import Trainer
from sagann.train.balancer import learned_costs
from sagann.train.rehearsals import foretell_trainers
from sagann.train.resources import resolve_device
from sagann.train.run_folder import RUNS, is_of_run
from sagann.train.streamed import Streaming
from sagann.train.trainable import require_divisible

_PROGRAMS, _STREAMED = "the programs of layers", "an epoch within a budget (--memory)"
_SAMPLED, _TRAINERS, _PARTS = "mini-batches (--sample)", "several trainers (--devices)", "workers (--workers)"
_DEALT = "an epoch within a budget on devices of a described machine (--memory, --machine, --devices 8)"
_READ_BY = {
    _PROGRAMS: ("--show kernels",),
    _STREAMED: ("--show steps", "--machine", "--picture"),
    _DEALT: ("--show steps", "--machine"),
    _SAMPLED: (),
    _TRAINERS: ("--machine", "--kernel"),
    _PARTS: ("--learned",),
}
"Options of the command that each plan reads."
# Programs do not depend on the number of rows; a few rows show everything that a training step compiles.
_FEW_VERTICES = 16
_WAY_IN = re.compile(r"device(\d{1,4})\.copy_in")


def plan_run(
    given: Given,
    file: Path | None,
    shared: Shared,
    *,
    show: str,
    machine: Path | None,
    kernel: str | None,
    picture: Path | None,
    learned: Path | None,
) -> None:
    """Explain what ``sagann train`` would do; ``given`` are its settings on the command line, ``file`` is ``--config``."""
    # Without mini-batches, the number of devices of a described machine.
    devices = str(given.get("devices") or "")
    count = int(devices) if re.fullmatch(r"\d{1,4}", devices) else 0
    if count:
        given = {name: value for name, value in given.items() if name != "devices"}
    settings = chosen_settings(given, file, of_run=is_of_run(file))
    train = settings.train
    if settings.workers > 1:
        plan = _PARTS
    elif train.sample is not None:
        plan = _SAMPLED if train.devices is None else _TRAINERS
    else:
        plan = _PROGRAMS if train.memory is None else _DEALT if count else _STREAMED
    if count and (plan != _DEALT or machine is None):
        raise InputError(
            f"a number of devices is planned on a machine that is described, within a budget: {count} (in --devices)",
            hint="Add --machine p100x8, or a file of your own, and --memory, the budget of each device; leave --sample and --workers out.",
        )
    options = {"--machine": machine, "--kernel": kernel, "--picture": picture, "--learned": learned}
    for name in [f"--show {show}", *(name for name, value in options.items() if value is not None)]:
        readers = [each for each, names in _READ_BY.items() if name in names]
        if readers and plan not in readers:
            raise InputError(
                f"an option has no effect on this plan: {name}, and the plan is of {plan} (in sagann plan)",
                hint=f"Leave {name} out, or plan {' or '.join(readers)}.",
            )
    if plan != _PARTS:
        require_nothing_of_workers(given)
    run = PlannedRun(settings, shared)
    if plan == _PROGRAMS:
        run.show_programs(with_source=show == "kernels")
    elif plan == _STREAMED:
        run.show_streaming(with_steps=show == "steps", machine_file=machine, picture=picture)
    elif plan == _DEALT and machine is not None:
        run.show_devices(count, with_steps=show == "steps", machine_file=machine)
    elif plan == _SAMPLED:
        run.show_batches()
    elif plan == _TRAINERS:
        run.show_trainers(machine_file=machine, kernel=kernel)
    else:
        run.show_parts(learned)


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

    def opened(self, option: str = "") -> Graph:
        """The graph with its split, as training opens it. An ``option`` that plans vertices alone refuses other tasks."""
        streaming = Streaming.of(self.settings.train, self.folder, device=self.device)
        graph = opened_graph(self.settings, streaming, say=self.terminal.say)
        if option and graph.answers.unit != "vertex":
            raise InputError(
                f"training on links, and on whole graphs, is not planned: the task is {task_of(graph)}, and "
                f"{option} plans how one graph is trained on its vertices (in sagann plan)",
                hint=f"Leave {option} out.",
            )
        return graph

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
        show = self.terminal.show
        trainer, engine = self.trainer(self.opened(), device="cpu"), CompiledEngine()
        model, graph = trainer.model, trainer.prepared.graph
        # A step forward and backward on few vertices compiles everything.
        with using_engine(engine):
            if graph.answers.unit == "graph":
                batch = GraphBatches(graph, graphs=None).load(torch.arange(1))
                model(batch.hops(count_hops(model)), batch.features, batch.graph_ptr).sum().backward()
            else:
                graph = replace(graph, links=None)
                if graph.features is not None:
                    graph = subgraph(graph, torch.arange(min(_FEW_VERTICES, graph.num_vertices)))
                model(graph.hops(count_hops(model)), graph.in_memory().features).sum().backward()
        layers = {name: each for name, each in model.named_modules() if isinstance(each, SagaLayer)}
        for name, layer in layers.items():
            for program in engine.programs_of(layer):
                if isinstance(program, str):
                    show(f"{name or 'the model'}: runs as it is written, because {program}\n")
                    continue
                show(f"{name or 'the model'}, {explain(program)}\n")
                for either in (program, program.maps_last) if with_source else ():
                    if either is not None and either.edges.function is not None:
                        derived = [step.function for step in sum(either.edges.derived.values(), ())]
                        for function in (either.edges.function, *derived):
                            show(source_of(function))

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
                "No time is estimated, because copies between devices are not measured: describe them with --machine."
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
        known = 0
        if machine.host_to_device_bytes is not None:
            known = 1 + max((int(at[1]) for each in machine.links if (at := _WAY_IN.fullmatch(each))), default=0)
        if count > known:
            raise InputError(
                f"the machine has not so many devices: {count} of {known}, {machine.name} (in --devices)",
                hint='Name fewer, or add [links."device1.copy_in"] and so on to the machine\'s file, with host_to_device_bytes.',
            )
        names = [f"device{number}" for number in range(count)]
        trainer = self.trainer(self.opened(), device="cpu")
        graph = trainer.prepared.graph
        self.terminal.say("Planning ...")
        found = foretell_devices(
            trainer.model,
            graph,
            budget_bytes=self.settings.train.memory_bytes or 0,
            folded=graph.answers.unit == "vertex",
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

    def show_trainers(self, *, machine_file: Path | None, kernel: str | None) -> None:
        """Print the best split of seeds and threads: of this machine as rehearsed, of a described one by the equations.

        ``kernel`` are other sizes of that machine's hardware kernels, as 'scatter_pes=16'.
        """
        train, say = self.settings.train, self.terminal.say
        assert train.devices is not None
        refuse(train, ["memory"], "devices is set", "leave it out: evaluations are not planned")
        devices = Devices.parse(train.devices, where="--devices")
        num_others, machine = len(devices.names), None
        if machine_file is not None:
            machine = machine_of_equations(self.settings, machine_file, kernel)
        elif kernel is not None or any(devices.fpga):
            raise InputError(
                "hardware kernels are planned on a machine that is described: "
                f"{'--kernel' if kernel is not None else train.devices}, without --machine (in sagann plan)",
                hint="Add --machine epyc-7763-u250, or a file of your own.",
            )
        else:
            # More cores than there are are refused.
            devices.cores()
        graph = self.opened("--devices")
        total = min(train.seeds_per_batch, int(graph.splits["train"].sum()))
        if total <= num_others:
            raise InputError(
                f"fewer seeds than trainers: {total} seeds an iteration, {num_others} accelerators (in --batch-size)",
                hint="Raise it, or name fewer accelerators in --devices.",
            )
        if machine is None:
            say("Sampling, loading and training a few mini-batches with every trainer ...")
            with using_engine(new_engine(self.settings)):
                found, more = foretell_trainers(self.trainer(graph))
            cores = devices.accelerator_cores
            others = zip(cores, accelerator_names(len(cores)), strict=True)
            name = (
                f"this one, {processor_name()}, rehearsed; {devices.threads()} of {num_cores()} cores for the processor's tasks"
                + "".join(f", {count} for {other}" for count, other in others)
            )
        else:
            say("Sampling a few mini-batches ...")
            name = machine.name + (f"; kernels with {kernel}" if kernel else "")
            best = best_split_on(self.settings, graph, machine, total=total, uses_host=devices.uses_host)
            found, more = best(num_others), best(num_others + 1) if total > num_others + 1 else None
        self.terminal.show(trainers_text(found, machine=name, more=more))

    def show_parts(self, learned: Path | None) -> None:
        """Print the parts of the workers, with the seconds that the cost model of the run ``learned`` predicts."""
        show, say = self.terminal.show, self.terminal.say
        size, balance = self.settings.workers, self.settings.balance
        require_divisible(self.settings.train, balance=balance)
        if self.settings.train.memory is not None:
            say("Streaming within --memory is planned for one process only: leave --workers out.")
        costs = None if learned is None else learned_costs(learned)
        topology = self.trainer(self.opened("--workers"), device="cpu").prepared.graph.topology
        if costs is None:
            if balance == "cost":
                say("Without a cost model (--learned), parts begin with equal edges, and move after some epochs.")
            bounds = vertex_ranges(topology.indptr, size, balance)
            show(parts_table([part_of(topology, bounds, rank) for rank in range(size)], None, balance=balance))
            return
        features, fitting = costs.count(topology), costs.model_for(size)
        divisions: dict[str, tuple[int, ...]] = {
            name: vertex_ranges(topology.indptr, size, by=name) for name in ("edges", "vertices")
        }
        divisions["cost"] = costs.bounds(features, size)
        seconds = {
            name: fitting.seconds_of_parts(features, costs.operations, bounds) for name, bounds in divisions.items()
        }
        parts = [part_of(topology, divisions[balance], rank) for rank in range(size)]
        show(parts_table(parts, seconds[balance], balance=balance))
        show(costs_text(costs.model, {name: max(each) for name, each in seconds.items()}))
        if said := costs.unknown_text(size):
            say(said)

"""The work of ``sagann plan --sample --devices``: hybrid training on a machine of which only the rates are known, or on this one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from sagann.cli.options import Shared
from sagann.cli.prepare import require_vertices, training_graph
from sagann.cli.run_settings import new_engine, read_text
from sagann.config import RunConfig
from sagann.errors import InputError
from sagann.graph import Graph
from sagann.hybrid.devices import Devices
from sagann.machines import NAMES, published_machine
from sagann.plan.hybrid.assignment import HOST
from sagann.plan.hybrid.degrees import DegreeLaw, measured_law
from sagann.plan.hybrid.iterations import AnyJob, Job
from sagann.plan.hybrid.predict import ACCELERATOR, accelerator_names, best_split, machine_here, with_accelerators
from sagann.plan.hybrid.work import Widths
from sagann.plan.machine import Machine
from sagann.report.hybrid_plan_text import hybrid_plan_text
from sagann.runtime.processor import num_cores, processor_name
from sagann.saga.engine import using_engine
from sagann.sampling import NeighborSampler
from sagann.train import Trainer

MODELS = {"gcn": False, "sage": True}
"Models that the performance model knows, and whether their layers put a vertex's own row beside its aggregate."
_UNCOUNTED, _BATCHES = 2, 5
"Mini-batches that are sampled for the rate of sampling: the first ones compile and are not counted."


def show_hybrid(settings: RunConfig, shared: Shared, *, machine_file: Path | None) -> None:
    """Print what is predicted for the best split of seeds and threads: of this machine by a rehearsal, of another one by the equations."""
    terminal, devices = shared.terminal(), settings.train.devices
    assert devices is not None
    fanouts = _checked(settings, by_equations=machine_file is not None)
    if machine_file is not None and settings.train.link_rate is not None:
        raise InputError(
            "a machine that is described states the rates of its links: --link-rate, with --machine (in sagann "
            "plan)",
            hint="State bytes_per_s of the links in the file, or leave --machine out for this machine.",
        )
    described = described_here(devices) if machine_file is None else described_in(machine_file, devices)
    graph = training_graph(settings.data, task=settings.train.task, seed=settings.train.seed, say=terminal.say)
    require_vertices(graph, "--devices")
    total = min(settings.train.seeds_per_batch, int(graph.splits["train"].sum()))
    if total <= len(described.names):
        raise InputError(
            f"fewer seeds than trainers: {total} seeds an iteration, {len(described.names)} accelerators (in "
            "--batch-size)",
            hint="Raise it, or name fewer accelerators in --devices.",
        )
    job: AnyJob
    if machine_file is None:
        terminal.say("Sampling, loading and training a few mini-batches with every trainer ...")
        shared.load_compiler()
        trainer = Trainer(settings.model, graph, settings.train, validate=False)
        with using_engine(new_engine(settings)):
            job = trainer.rehearse_trainers()
    else:
        terminal.say("Sampling a few mini-batches ...")
        job = _job(settings, graph, fanouts)
    found, more = (
        best_split(machine, job, total=total, accelerators=names, uses_host=described.uses_host)
        if machine is not None and total > len(names)
        else None
        for machine, names in ((described.machine, described.names), (described.more, described.more_names))
    )
    assert found is not None
    terminal.show(hybrid_plan_text(found, machine=described.machine.name, more=more))


def _job(settings: RunConfig, graph: Graph, fanouts: tuple[int, ...]) -> Job:
    """What the equations ask of a run."""
    return Job(
        law=law_of(graph),
        num_train=int(graph.splits["train"].sum()),
        widths=Widths(
            features=(
                graph.num_features,
                *[settings.model.hidden] * (settings.model.layers - 1),
                graph.num_outputs,
            ),
            concatenates=MODELS[settings.model.model],
        ),
        fanouts=fanouts,
        sampled_edges_per_s=sampled_edges_per_s(graph, fanouts, settings.train.seeds_per_batch),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A machine and its trainers."""

    machine: Machine
    "The machine with the accelerators that are asked for."
    names: tuple[str, ...]
    "Names of these accelerators."
    more: Machine | None
    "The machine with one more accelerator; None where no core is left for it."
    more_names: tuple[str, ...]
    "Names of the accelerators, with one more."
    uses_host: bool
    "Whether the processor trains, too."


def described_in(file: Path, devices: str) -> Described:
    """The machine of a file, or a published one by its name, with accelerators that are all as its first one."""
    uses_host, count = trainers_in(devices)
    if str(file) in NAMES and not file.exists():
        machine = published_machine(str(file))
    else:
        machine = Machine.from_toml(read_text(file, what="machine file"), where=str(file))
    now, more = (with_accelerators(machine, each) for each in (count, count + 1))
    return Described(
        machine=now,
        names=accelerator_names(count),
        more=more,
        more_names=accelerator_names(count + 1),
        uses_host=uses_host,
    )


def described_here(devices: str) -> Described:
    """This machine, whose trainers are rehearsed. One more accelerator process takes its cores from the processor's tasks.

    Args:
        devices: who trains, as for ``sagann train``.
    """
    trainers = Devices.parse(devices, where="--devices")
    trainers.cores()
    own, cores = trainers.threads(), trainers.accelerator_cores
    names, more_names = trainers.names, (*trainers.cuda, *accelerator_names(len(cores) + 1))
    left = own - cores[-1] if cores else 0
    said = ", ".join(
        f"{count} for {name}" for name, count in zip(accelerator_names(len(cores)), cores, strict=True)
    )
    name = f"this one, {processor_name()}, rehearsed; {own} of {num_cores()} cores for the processor's tasks{said and ', '}{said}"
    return Described(
        machine=machine_here(name, own, names),
        names=names,
        more=machine_here(name, left, more_names) if left > 0 else None,
        more_names=more_names,
        uses_host=trainers.uses_host,
    )


def trainers_in(devices: str) -> tuple[bool, int]:
    """Whether the processor trains, and the number of accelerators, of a list such as 'host,accelerator,accelerator'.

    Raises:
        InputError: the list has another name, the host twice, or no accelerator.
    """
    names = [each.strip() for each in devices.split(",")]
    count = names.count(ACCELERATOR)
    if not count or names.count(HOST) > 1 or count + names.count(HOST) < len(names):
        raise InputError(
            f"no list of trainers: '{devices}' (in --devices)",
            hint=f"Write '{HOST}' at most once, and '{ACCELERATOR}' for each accelerator, as {HOST},{ACCELERATOR},{ACCELERATOR}.",
        )
    return HOST in names, count


def law_of(graph: Graph) -> DegreeLaw:
    """The degrees of a graph."""
    topology = graph.topology
    in_degrees = torch.diff(torch.as_tensor(topology.indptr)).long()
    out_degrees = torch.bincount(torch.as_tensor(topology.indices).long(), minlength=topology.num_src)
    return measured_law(in_degrees.numpy(), out_degrees.numpy())


def sampled_edges_per_s(graph: Graph, fanouts: tuple[int, ...], batch_size: int) -> float:
    """Edges that a thread of this machine samples per second."""
    sampler = NeighborSampler(graph.topology, fanouts)
    seeds = graph.splits["train"].nonzero().flatten()
    num_edges, started = 0, time.perf_counter()
    for number in range(_UNCOUNTED + _BATCHES):
        if number == _UNCOUNTED:
            num_edges, started = 0, time.perf_counter()
        first = number * batch_size % len(seeds)
        sampled = sampler.sample(seeds[first : first + batch_size], batch=number)
        num_edges += sum(block.num_edges for block in sampled.blocks)
    return max(num_edges, 1) / (time.perf_counter() - started)


def _checked(settings: RunConfig, *, by_equations: bool) -> tuple[int, ...]:
    """The fanouts, if they fit the run, and the equations know it where they are asked."""
    fanouts = settings.train.sample
    if fanouts is None or len(fanouts) != settings.model.layers:
        raise InputError(
            f"fanouts do not fit the layers: {'none' if fanouts is None else len(fanouts)}, and the model has "
            f"{settings.model.layers} layers (in --sample)",
            hint="Name a fanout for each layer, as --sample 25,10 for two.",
        )
    if by_equations and (settings.model.model not in MODELS or settings.model.encoder not in ("auto", "none")):
        raise InputError(
            f"the performance model does not know this model: '{settings.model.model}' with encoder "
            f"'{settings.model.encoder}' (in --model)",
            hint=f"Name {' or '.join(MODELS)} without an encoder, or leave --machine out to rehearse any model here.",
        )
    return fanouts

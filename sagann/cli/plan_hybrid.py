"""The work of ``sagann plan --sample --devices``: hybrid training on a machine of which only the rates are known, or on this one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sagann.cli.options import Given, Shared
from sagann.cli.prepare import require_vertices, training_graph
from sagann.cli.run_settings import RunSettings, chosen_settings, read_text
from sagann.errors import InputError
from sagann.graph import Graph
from sagann.hybrid.devices import Devices
from sagann.machines import NAMES, published_machine
from sagann.plan.hybrid.assignment import HOST
from sagann.plan.hybrid.degrees import DegreeLaw, measured_law
from sagann.plan.hybrid.iterations import Job
from sagann.plan.hybrid.predict import ACCELERATOR, accelerator_names, best_split, with_accelerators, with_processes
from sagann.plan.hybrid.work import Widths
from sagann.plan.machine import Machine
from sagann.report.hybrid_plan_text import hybrid_plan_text
from sagann.sampling import NeighborSampler
from sagann.train.run_folder import is_of_run

MODELS = {"gcn": False, "sage": True}
"Models that the performance model knows, and whether their layers put a vertex's own row beside its aggregate."
_BATCHES = 5
"Mini-batches that are sampled for the rate of sampling; the first ones compile and are not counted."


def show_hybrid(
    given: Given, file: Path | None, shared: Shared, *, devices: str, machine_file: Path | None, uncounted: int = 2
) -> None:
    """Print what the performance model predicts for the best split of seeds and threads."""
    terminal = shared.terminal()
    if machine_file is None:
        # They are trainers of this machine: then the settings check them.
        given = {**given, "devices": devices}
    settings = chosen_settings(given, file, of_run=is_of_run(file))
    fanouts = _checked(settings)
    if machine_file is None:
        described = described_here(devices, link_rate=settings.train.link_rate, say=terminal.say)
    else:
        described = described_in(machine_file, devices)
    graph = training_graph(settings.data, task=settings.train.task, seed=settings.train.seed, say=terminal.say)
    require_vertices(graph, "--devices")
    terminal.say("Sampling a few mini-batches ...")
    job = Job(
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
        sampled_edges_per_s=sampled_edges_per_s(
            graph, fanouts, settings.train.seeds_per_batch, uncounted=uncounted
        ),
    )
    total = min(settings.train.seeds_per_batch, job.num_train)
    count = described.count
    found, more = (
        best_split(
            machine,
            job,
            total=total,
            accelerators=accelerator_names(each),
            uses_host=described.uses_host,
        )
        if machine is not None and total > each
        else None
        for machine, each in ((described.machine, count), (described.more, count + 1))
    )
    if found is None:
        raise InputError(
            "fewer seeds than trainers",
            value=f"{total} seeds an iteration, {count} accelerators",
            where="--batch-size",
            fix="Raise it, or name fewer accelerators in --devices.",
        )
    terminal.show(hybrid_plan_text(found, machine=described.machine.name, more=more))


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A machine and its trainers."""

    machine: Machine
    "The machine with the accelerators that are asked for."
    more: Machine | None
    "The machine with one more accelerator; None where no core is left for it."
    count: int
    "Number of accelerators that are asked for."
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
    return Described(machine=now, more=more, count=count, uses_host=uses_host)


def described_here(
    devices: str,
    *,
    link_rate: float | None,
    say: Callable[[str], None],
    measured: Callable[[Path], Machine] | None = None,
) -> Described:
    """This machine, measured, with accelerators that are processes on cores of their own.

    Args:
        devices: who trains, as for ``sagann train``.
        link_rate: bytes per second of copies to an accelerator; None for as fast as memory is.
        say: is told what is measured.
        measured: gives the rates, given a folder whose disk is measured; None for a probe of this machine.
    """
    # Imported here: it loads Numba.
    from sagann.runtime.forecasting.probe import probe

    trainers = Devices.parse(devices, where="--devices")
    trainers.cores()
    own, cores = trainers.threads(), trainers.accelerator_cores
    say("Measuring this machine ...")
    with tempfile.TemporaryDirectory() as folder:
        machine = (measured or probe)(Path(folder))
    name = (
        f"this one, {machine.name}, measured; {own} of {machine.num_cores} cores for the processor's tasks, "
        f"{', '.join(map(str, cores))} for {', '.join(accelerator_names(len(cores)))}, each with the processor's rates by its share of the cores"
    )
    left = own - cores[-1]
    return Described(
        machine=replace(with_processes(machine, own, cores, bytes_per_s=link_rate), name=name),
        more=with_processes(machine, left, (*cores, cores[-1]), bytes_per_s=link_rate) if left > 0 else None,
        count=len(cores),
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
            "no list of trainers",
            value=f"'{devices}'",
            where="--devices",
            fix=f"Write '{HOST}' at most once, and '{ACCELERATOR}' for each accelerator, as {HOST},{ACCELERATOR},{ACCELERATOR}.",
        )
    return HOST in names, count


def law_of(graph: Graph) -> DegreeLaw:
    """The degrees of a graph."""
    topology = graph.topology
    in_degrees = torch.diff(torch.as_tensor(topology.indptr)).long()
    out_degrees = torch.bincount(torch.as_tensor(topology.indices).long(), minlength=topology.num_src)
    return measured_law(in_degrees.numpy(), out_degrees.numpy())


def sampled_edges_per_s(graph: Graph, fanouts: tuple[int, ...], batch_size: int, *, uncounted: int) -> float:
    """Edges that a thread of this machine samples per second."""
    sampler = NeighborSampler(graph.topology, fanouts)
    seeds = graph.splits["train"].nonzero().flatten()
    num_edges, started = 0, time.perf_counter()
    for number in range(uncounted + _BATCHES):
        if number == uncounted:
            num_edges, started = 0, time.perf_counter()
        first = number * batch_size % len(seeds)
        sampled = sampler.sample(seeds[first : first + batch_size], batch=number)
        num_edges += sum(block.num_edges for block in sampled.blocks)
    return max(num_edges, 1) / (time.perf_counter() - started)


def _checked(settings: RunSettings) -> tuple[int, ...]:
    """The fanouts, if the performance model knows the run."""
    fanouts = settings.train.sample
    if fanouts is None or len(fanouts) != settings.model.layers:
        raise InputError(
            "fanouts do not fit the layers",
            value=f"{'none' if fanouts is None else len(fanouts)}, and the model has {settings.model.layers} layers",
            where="--sample",
            fix="Name a fanout for each layer, as --sample 25,10 for two.",
        )
    if settings.model.model not in MODELS or settings.model.encoder not in ("auto", "none"):
        raise InputError(
            "the performance model does not know this model",
            value=f"'{settings.model.model}' with encoder '{settings.model.encoder}'",
            where="--model",
            fix=f"Name {' or '.join(MODELS)} without an encoder, or leave --devices out to rehearse any model here.",
        )
    return fanouts

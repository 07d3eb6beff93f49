"""The work of ``sagann plan --sample --devices``: hybrid training on a machine of which only the rates are known."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from sagann.cli.options import Given, Shared
from sagann.cli.prepare import training_graph
from sagann.cli.run_settings import RunSettings, chosen_settings, read_text
from sagann.errors import InputError
from sagann.graph import Graph
from sagann.machines import NAMES, published_machine
from sagann.plan.hybrid.assignment import HOST
from sagann.plan.hybrid.degrees import DegreeLaw, measured_law
from sagann.plan.hybrid.iterations import Job
from sagann.plan.hybrid.predict import ACCELERATOR, accelerator_names, best_split, with_accelerators
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
    settings = chosen_settings(given, file, of_run=is_of_run(file))
    uses_host, count = trainers_in(devices)
    machine = machine_named(machine_file)
    fanouts = _checked(settings)
    graph = training_graph(settings.data, task=settings.train.task, seed=settings.train.seed, say=terminal.say)
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
        sampled_edges_per_s=sampled_edges_per_s(graph, fanouts, settings.train.batch_size, uncounted=uncounted),
    )
    total = min(settings.train.batch_size, job.num_train)
    found, more = (
        best_split(
            with_accelerators(machine, each),
            job,
            total=total,
            accelerators=accelerator_names(each),
            uses_host=uses_host,
        )
        if total > each
        else None
        for each in (count, count + 1)
    )
    if found is None:
        raise InputError(
            "fewer seeds than trainers",
            value=f"{total} seeds an iteration, {count} accelerators",
            where="--batch-size",
            fix="Raise it, or name fewer accelerators in --devices.",
        )
    terminal.show(hybrid_plan_text(found, machine=machine.name, more=more))


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


def machine_named(file: Path | None) -> Machine:
    """The machine of a file, or a published one by its name."""
    if file is None:
        raise InputError(
            "no machine with accelerators is named",
            value="--devices, and no --machine",
            where="sagann plan",
            fix=f"Add --machine with a file, or with one of {', '.join(NAMES)}.",
        )
    if str(file) in NAMES and not file.exists():
        return published_machine(str(file))
    return Machine.from_toml(read_text(file, what="machine file"), where=str(file))


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

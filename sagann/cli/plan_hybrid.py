"""The work of ``sagann plan --sample --devices``: hybrid training on a machine of which only the rates are known, or on this one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from sagann.cli.options import Shared
from sagann.cli.prepare import require_vertices, training_graph
from sagann.cli.run_settings import new_engine, read_text
from sagann.config import RunConfig
from sagann.errors import InputError
from sagann.graph import Graph
from sagann.hybrid.assignment import HOST
from sagann.hybrid.devices import Devices
from sagann.hybrid.forecast import (
    ACCELERATOR,
    BatchCounts,
    Job,
    Prediction,
    Widths,
    accelerator_names,
    best_split,
    with_accelerators,
)
from sagann.machines import NAMES, published_machine
from sagann.plan.machine import Machine
from sagann.report.hybrid_plan_text import hybrid_plan_text
from sagann.report.terminal import Terminal
from sagann.runtime.processor import num_cores, processor_name
from sagann.saga.engine import using_engine
from sagann.sampling import NeighborSampler
from sagann.train import Trainer

MODELS = {"gcn": False, "sage": True}
"Models that the performance model knows, and whether their layers put a vertex's own row beside its aggregate."
_UNCOUNTED, _BATCHES = 2, 5
"Mini-batches that are sampled of each size; the first ones compile and are not counted."
_SIZES = 4
"Sizes of mini-batches that are sampled: that of an iteration, and a half of each one for the next."


def show_hybrid(settings: RunConfig, shared: Shared, *, machine_file: Path | None) -> None:
    """Print what is predicted for the best split of seeds and threads: of this machine by a rehearsal, of another one by the equations."""
    terminal, train = shared.terminal(), settings.train
    assert train.devices is not None
    _require_fitting(settings, by_equations=machine_file is not None)
    if machine_file is not None and train.link_rate is not None:
        raise InputError(
            "a machine that is described states the rates of its links: --link-rate, with --machine (in sagann "
            "plan)",
            hint="State bytes_per_s of the links in the file, or leave --machine out for this machine.",
        )
    if machine_file is None:
        devices = Devices.parse(train.devices, where="--devices")
        name, num_others = described_here(devices), len(devices.names)
    else:
        uses_host, num_others = trainers_in(train.devices)
        machine = machine_in(machine_file)
        name = machine.name
    graph = training_graph(settings.data, task=train.task, seed=train.seed, say=terminal.say)
    require_vertices(graph, "--devices")
    total = min(train.seeds_per_batch, int(graph.splits["train"].sum()))
    if total <= num_others:
        raise InputError(
            f"fewer seeds than trainers: {total} seeds an iteration, {num_others} accelerators (in --batch-size)",
            hint="Raise it, or name fewer accelerators in --devices.",
        )
    if machine_file is None:
        terminal.say("Sampling, loading and training a few mini-batches with every trainer ...")
        shared.load_compiler()
        trainer = Trainer(settings.model, graph, train, validate=False)
        with using_engine(new_engine(settings)):
            found, more = trainer.foretell_trainers()
    else:
        job_on = _job_on(settings, graph, total, terminal)

        def best(count: int) -> Prediction:
            job = job_on(machine=with_accelerators(machine, count))
            return best_split(job, total=total, accelerators=accelerator_names(count), uses_host=uses_host)

        found, more = best(num_others), best(num_others + 1) if total > num_others + 1 else None
    terminal.show(hybrid_plan_text(found, machine=name, more=more))


def machine_in(file: Path) -> Machine:
    """The machine of a file, or a published one by its name. It must have an accelerator, which all others are like."""
    if str(file) in NAMES and not file.exists():
        return published_machine(str(file))
    machine = Machine.from_toml(read_text(file, what="machine file"), where=str(file))
    return with_accelerators(machine, 1)


def described_here(devices: Devices) -> str:
    """This machine, in words, with the cores of each accelerator."""
    devices.cores()
    cores = devices.accelerator_cores
    said = "".join(
        f", {count} for {name}" for name, count in zip(accelerator_names(len(cores)), cores, strict=True)
    )
    return f"this one, {processor_name()}, rehearsed; {devices.threads()} of {num_cores()} cores for the processor's tasks{said}"


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


def _job_on(settings: RunConfig, graph: Graph, total: int, terminal: Terminal) -> Callable[..., Job]:
    """What the equations ask of a run, but for the machine."""
    terminal.say("Sampling a few mini-batches ...")
    assert settings.train.sample is not None
    counts, edges_per_s = sampled_counts(graph, settings.train.sample, total)
    hidden = [settings.model.hidden] * (settings.model.layers - 1)
    return partial(
        Job,
        counts=counts,
        num_train=int(graph.splits["train"].sum()),
        widths=Widths(
            features=(graph.num_features, *hidden, graph.num_outputs), concatenates=MODELS[settings.model.model]
        ),
        sampled_edges_per_s=edges_per_s,
    )


def sampled_counts(
    graph: Graph, fanouts: tuple[int, ...], total: int
) -> tuple[Callable[[int], BatchCounts], float]:
    """Vertices and edges of mini-batches of at most ``total`` seeds, and the edges that a thread of this machine samples per second.

    Some sizes are sampled; between them, counts are on a straight line.
    """
    sampler, seeds = NeighborSampler(graph.topology, fanouts), graph.splits["train"].nonzero().flatten()
    sizes, rows = [0], [[0.0] * (2 * len(fanouts) + 1)]
    num_edges, sampled_s = 0, 0.0
    for size in sorted({max(1, total >> halvings) for halvings in range(_SIZES)}):
        found = []
        for number in range(_UNCOUNTED + _BATCHES):
            started_s = time.perf_counter()
            sampled = sampler.sample(seeds.roll(-number * size)[:size], batch=number)
            if number >= _UNCOUNTED:
                sampled_s += time.perf_counter() - started_s
                num_edges += sampled.num_edges
                blocks = sampled.blocks
                found.append(
                    [blocks[0].num_src, *(each.num_dst for each in blocks), *(each.num_edges for each in blocks)]
                )
        sizes.append(size)
        rows.append([fmean(column) for column in zip(*found, strict=True)])
    columns = np.array(rows).T

    def counts(num_seeds: int) -> BatchCounts:
        at = [float(np.interp(num_seeds, sizes, column)) for column in columns]
        return BatchCounts(vertices=tuple(at[: len(fanouts) + 1]), edges=tuple(at[len(fanouts) + 1 :]))

    return counts, max(num_edges, 1) / sampled_s


def _require_fitting(settings: RunConfig, *, by_equations: bool) -> None:
    """Refuse fanouts that do not fit the layers, and a model that the equations do not know where they are asked."""
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

"""``sagann plan --devices``: the best split of hybrid training, of this machine by a rehearsal, of a described one by the equations.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. V.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from sagann.cli.run_settings import new_engine, read_text
from sagann.config import RunConfig
from sagann.errors import InputError
from sagann.graph import Graph
from sagann.graph.graph import task_of
from sagann.hybrid.devices import Devices
from sagann.hybrid.forecast import (
    BatchCounts,
    Job,
    Prediction,
    Widths,
    accelerator_names,
    best_split,
    with_accelerators,
)
from sagann.machines import NAMES, published_machine
from sagann.options import refuse
from sagann.plan.machine import Machine
from sagann.report.plan_text import trainers_text
from sagann.runtime.processor import num_cores, processor_name
from sagann.saga.engine import using_engine
from sagann.sampling import NeighborSampler
from sagann.train.rehearsals import foretell_trainers

if TYPE_CHECKING:
    from sagann.cli.plan_run import PlannedRun

_BY_EQUATIONS = {"gcn": False, "sage": True}
"Models that the performance model knows, and whether their layers put a vertex's own row beside its aggregate."
_UNCOUNTED, _BATCHES = 2, 5
"Mini-batches that are sampled of each size; the first ones compile and are not counted."
_SIZES = 4
"Sizes of mini-batches that are sampled: that of an iteration, and a half of each one for the next."


def show_trainers(run: PlannedRun, *, machine_file: Path | None, kernel: str | None) -> None:
    """Print what is predicted for the best split of seeds and threads: of this machine by a rehearsal, of another one by the equations.

    ``kernel`` are other sizes of that machine's hardware kernels, as 'scatter_pes=16'.
    """
    train = run.settings.train
    assert train.devices is not None
    refuse(train, ["memory"], "devices is set", "leave it out: evaluations are not planned")
    devices = Devices.parse(train.devices, where="--devices")
    num_others = len(devices.names)
    if machine_file is None:
        if kernel is not None or any(devices.fpga):
            raise InputError(
                "hardware kernels are planned on a machine that is described: "
                f"{'--kernel' if kernel is not None else train.devices}, without --machine (in sagann plan)",
                hint="Add --machine epyc-7763-u250, or a file of your own.",
            )
        name = _this_machine(devices)
    else:
        _require_equations(run.settings)
        machine = with_accelerators(described_machine(machine_file), 1)
        name = machine.name
        if kernel is not None:
            machine, name = _with_kernel(machine, kernel), f"{name}; kernels with {kernel}"
    graph = run.opened()
    require_vertices(graph, "--devices")
    total = min(train.seeds_per_batch, int(graph.splits["train"].sum()))
    if total <= num_others:
        raise InputError(
            f"fewer seeds than trainers: {total} seeds an iteration, {num_others} accelerators (in --batch-size)",
            hint="Raise it, or name fewer accelerators in --devices.",
        )
    if machine_file is None:
        run.terminal.say("Sampling, loading and training a few mini-batches with every trainer ...")
        trainer = run.trainer(graph)
        with using_engine(new_engine(run.settings)):
            found, more = foretell_trainers(trainer)
    else:
        run.terminal.say("Sampling a few mini-batches ...")
        job_on = _job_on(run.settings, graph, total)

        def best(count: int) -> Prediction:
            job = job_on(machine=with_accelerators(machine, count))
            return best_split(job, total=total, accelerators=accelerator_names(count), uses_host=devices.uses_host)

        found, more = best(num_others), best(num_others + 1) if total > num_others + 1 else None
    run.terminal.show(trainers_text(found, machine=name, more=more))


def _with_kernel(machine: Machine, text: str) -> Machine:
    """The machine whose accelerator has hardware kernels of other sizes."""
    first, where = accelerator_names(1)[0], "--kernel"
    kernel = machine.kernel(first)
    if kernel is None:
        raise InputError(
            f"the machine has no hardware kernels: {machine.name} (in {where})",
            hint=f"Name epyc-7763-u250, or add [devices.{first}.kernel] to the machine's file.",
        )
    kernel = kernel.with_sizes(text, where=where)
    return replace(machine, devices={first: {**machine.devices[first], "kernel": asdict(kernel)}})


def _require_equations(settings: RunConfig) -> None:
    """Refuse what the performance model's equations do not know."""
    train, model = settings.train, settings.model
    assert train.sample is not None
    if train.link_rate is not None:
        raise InputError(
            "a machine that is described states the rates of its links: --link-rate, with --machine (in sagann "
            "plan)",
            hint="State bytes_per_s of the links in the file, or leave --machine out for this machine.",
        )
    if len(train.sample) != model.layers:
        raise InputError(
            f"fanouts do not fit the layers: {len(train.sample)}, and the model has {model.layers} layers (in "
            "--sample)",
            hint="Name a fanout for each layer, as --sample 25,10 for two.",
        )
    if model.model not in _BY_EQUATIONS or model.encoder not in ("auto", "none"):
        raise InputError(
            f"the performance model does not know this model: '{model.model}' with encoder '{model.encoder}' (in "
            "--model)",
            hint=f"Name {' or '.join(_BY_EQUATIONS)} without an encoder, or leave --machine out to rehearse any model here.",
        )


def _job_on(settings: RunConfig, graph: Graph, total: int) -> Callable[..., Job]:
    """What the equations ask of a run, but for the machine."""
    train, model = settings.train, settings.model
    assert train.sample is not None
    counts, edges_per_s = sampled_counts(graph, train.sample, total)
    hidden = [model.hidden] * (model.layers - 1)
    return partial(
        Job,
        counts=counts,
        num_train=int(graph.splits["train"].sum()),
        widths=Widths(
            features=(graph.num_features, *hidden, graph.num_outputs), concatenates=_BY_EQUATIONS[model.model]
        ),
        sampled_edges_per_s=edges_per_s,
    )


def require_vertices(graph: Graph, option: str) -> None:
    """Refuse to plan by an option for a task on whole graphs, which are trained in batches, or on links."""
    if graph.answers.unit != "vertex":
        raise InputError(
            f"training on links, and on whole graphs, is not planned: the task is {task_of(graph)}, and "
            f"{option} plans how one graph is trained on its vertices (in sagann plan)",
            hint=f"Leave {option} out.",
        )


def described_machine(file: Path) -> Machine:
    """The machine that a file describes, or a published one by its name."""
    if str(file) in NAMES and not file.exists():
        return published_machine(str(file))
    return Machine.from_toml(read_text(file, what="machine file"), where=str(file))


def _this_machine(devices: Devices) -> str:
    """This machine, in words, with the cores of each accelerator. More cores than there are are refused."""
    devices.cores()
    cores = devices.accelerator_cores
    others = "".join(
        f", {each} for {name}" for name, each in zip(accelerator_names(len(cores)), cores, strict=True)
    )
    return (
        f"this one, {processor_name()}, rehearsed; {devices.threads()} of {num_cores()} cores for the processor's "
        f"tasks{others}"
    )


def sampled_counts(
    graph: Graph, fanouts: tuple[int, ...], total: int
) -> tuple[Callable[[int], BatchCounts], float]:
    """Vertices and edges of mini-batches of at most ``total`` seeds, interpolated between sampled sizes; and the edges that a thread samples per second."""
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

"""``sagann plan --devices``: the best split of hybrid training, of this machine by a rehearsal, of a described one by the equations.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. V.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sagann.cli.run_settings import new_engine, read_text
from sagann.config import RunConfig
from sagann.errors import InputError
from sagann.graph import Graph
from sagann.graph.task import task_of
from sagann.hybrid.devices import Devices
from sagann.machines import NAMES, published_machine
from sagann.plan.hybrid.degrees import DegreeLaw, measured_law
from sagann.plan.hybrid.iterations import AnyJob, Job
from sagann.plan.hybrid.predict import accelerator_names, best_split, machine_here, with_accelerators
from sagann.plan.hybrid.work import Widths
from sagann.plan.machine import Machine
from sagann.report.shares_text import trainers_text
from sagann.runtime.processor import num_cores, processor_name
from sagann.saga.engine import using_engine
from sagann.sampling import NeighborSampler

if TYPE_CHECKING:
    from sagann.cli.plan_run import PlannedRun

_BY_EQUATIONS = {"gcn": False, "sage": True}
"Models that the performance model knows, and whether their layers put a vertex's own row beside its aggregate."
_UNCOUNTED, _BATCHES = 2, 5
"Mini-batches that are sampled for the rate of sampling: the first ones compile and are not counted."


def show_trainers(run: PlannedRun, *, machine_file: Path | None) -> None:
    """Print what is predicted for the best split of seeds and threads: of this machine by a rehearsal, of another one by the equations."""
    train = run.settings.train
    assert train.devices is not None
    devices = Devices.parse(train.devices, where="--devices")
    described = None if machine_file is None else described_machine(machine_file)
    if described is not None:
        _require_equations(run.settings)
    here, more = (trainers_of(devices, described, more=count) for count in (0, 1))
    assert here is not None
    graph = run.opened()
    require_vertices(graph, "--devices")
    total = min(train.seeds_per_batch, int(graph.splits["train"].sum()))
    if total <= len(devices.names):
        raise InputError(
            f"fewer seeds than trainers: {total} seeds an iteration, {len(devices.names)} accelerators (in "
            "--batch-size)",
            hint="Raise it, or name fewer accelerators in --devices.",
        )
    if described is None:
        run.terminal.say("Sampling, loading and training a few mini-batches with every trainer ...")
        trainer = run.trainer(graph)
        with using_engine(new_engine(run.settings)):
            job: AnyJob = trainer.rehearse_trainers()
    else:
        run.terminal.say("Sampling a few mini-batches ...")
        job = _job(run.settings, graph)
    found, with_more = (
        None
        if each is None or total <= len(each[1])
        else best_split(each[0], job, total=total, accelerators=each[1], uses_host=devices.uses_host)
        for each in (here, more)
    )
    assert found is not None
    run.terminal.show(trainers_text(found, machine=here[0].name, more=with_more))


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


def _job(settings: RunConfig, graph: Graph) -> Job:
    """What the equations ask of a run."""
    train, model = settings.train, settings.model
    assert train.sample is not None
    hidden = [model.hidden] * (model.layers - 1)
    return Job(
        law=law_of(graph),
        num_train=int(graph.splits["train"].sum()),
        widths=Widths(
            features=(graph.num_features, *hidden, graph.num_outputs), concatenates=_BY_EQUATIONS[model.model]
        ),
        fanouts=train.sample,
        sampled_edges_per_s=sampled_edges_per_s(graph, train.sample, train.seeds_per_batch),
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


def trainers_of(
    devices: Devices, described: Machine | None, *, more: int
) -> tuple[Machine, tuple[str, ...]] | None:
    """A machine with ``more`` accelerators than are named, and the names of all; None where no core is left for them.

    On a machine that is ``described``, all accelerators are as its first one. On this one, whose trainers are rehearsed, more of them take
    cores from the processor's tasks.
    """
    cores = devices.accelerator_cores
    count = len(cores) + more
    names = (*devices.cuda, *accelerator_names(count))
    if described is not None:
        return with_accelerators(described, count), names
    # Refuses more cores than there are.
    devices.cores()
    own = devices.threads()
    left = own - more * (cores[-1] if cores else own)
    if left <= 0:
        return None
    others = "".join(
        f", {each} for {name}" for name, each in zip(accelerator_names(len(cores)), cores, strict=True)
    )
    name = (
        f"this one, {processor_name()}, rehearsed; {own} of {num_cores()} cores for the processor's tasks{others}"
    )
    return machine_here(name, left, names), names


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

"""Machines that are described, for ``sagann plan``: their files, and the equations by which trainers share mini-batches on one.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. V.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from sagann.cli.run_settings import read_text
from sagann.config import RunConfig
from sagann.errors import InputError
from sagann.graph import Graph
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
from sagann.plan.machine import Machine
from sagann.sampling import NeighborSampler

_BY_EQUATIONS = {"gcn": False, "sage": True}
"Models that the performance model knows, and whether their layers put a vertex's own row beside its aggregate."
_UNCOUNTED, _BATCHES = 2, 5
"Mini-batches that are sampled of each size; the first ones compile and are not counted."
_SIZES = 4
"Sizes of mini-batches that are sampled: that of an iteration, and a half of each one for the next."


def described_machine(file: Path) -> Machine:
    """The machine that a file describes, or a published one by its name."""
    if str(file) in NAMES and not file.exists():
        return published_machine(str(file))
    return Machine.from_toml(read_text(file, what="machine file"), where=str(file))


def machine_in(file: Path, device: torch.device) -> Machine:
    """The described machine, with rates of copies to a device where a device computes, and without where the processor does."""
    found = described_machine(file)
    has_rates = found.host_to_device_bytes is not None
    if has_rates != (device.type != "cpu"):
        raise InputError(
            f"machine file is for another kind of device: copies to a device have {'' if has_rates else 'no '}rates, "
            f"and --device is {device} (in {file})",
            hint=f"{'Add --device cuda' if has_rates else 'Name a file of `sagann machine --device cuda`'}, or leave --machine out.",
        )
    return found


def machine_of_equations(settings: RunConfig, file: Path, kernel: str | None) -> Machine:
    """A described machine with an accelerator, whose hardware kernels may have other sizes. Runs that the equations do not know are refused."""
    train, model = settings.train, settings.model
    assert train.sample is not None
    if train.link_rate is not None:
        what = "a machine that is described states the rates of its links: --link-rate, with --machine (in sagann plan)"
        hint = "State bytes_per_s of the links in the file, or leave --machine out for this machine."
    elif len(train.sample) != model.layers:
        what = f"fanouts do not fit the layers: {len(train.sample)}, and the model has {model.layers} layers (in --sample)"
        hint = "Name a fanout for each layer, as --sample 25,10 for two."
    elif model.model not in _BY_EQUATIONS or model.encoder not in ("auto", "none"):
        what = f"the performance model does not know this model: '{model.model}' with encoder '{model.encoder}' (in --model)"
        hint = f"Name {' or '.join(_BY_EQUATIONS)} without an encoder, or leave --machine out to rehearse any model here."
    else:
        machine, first = with_accelerators(described_machine(file), 1), accelerator_names(1)[0]
        if kernel is None:
            return machine
        if found := machine.kernel(first):
            device = {**machine.devices[first], "kernel": asdict(found.with_sizes(kernel, where="--kernel"))}
            return replace(machine, devices={first: device})
        what = f"the machine has no hardware kernels: {machine.name} (in --kernel)"
        hint = f"Name epyc-7763-u250, or add [devices.{first}.kernel] to the machine's file."
    raise InputError(what, hint=hint)


def best_split_on(
    settings: RunConfig, graph: Graph, machine: Machine, *, total: int, uses_host: bool
) -> Callable[[int], Prediction]:
    """The best split of ``total`` seeds among so many accelerators of a machine, by the equations."""
    train, model = settings.train, settings.model
    assert train.sample is not None
    counts, edges_per_s = sampled_counts(graph, train.sample, total)
    widths = (graph.num_features, *[model.hidden] * (model.layers - 1), graph.num_outputs)

    def best(num_accelerators: int) -> Prediction:
        job = Job(
            machine=with_accelerators(machine, num_accelerators),
            counts=counts,
            num_train=int(graph.splits["train"].sum()),
            widths=Widths(features=widths, concatenates=_BY_EQUATIONS[model.model]),
            sampled_edges_per_s=edges_per_s,
        )
        names = accelerator_names(num_accelerators)
        return best_split(job, total=total, accelerators=names, uses_host=uses_host)

    return best


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

"""Forecast: seconds of an iteration of hybrid training on a machine of which only rates are known, equations 5 to 13 of HyScale-GNN.

In a full pipeline an iteration takes as long as its slowest stage: sampling, loading, a copy, or propagation with synchronisation.
The best split is searched: for threads, what each task needs at the pace of the trainers; for seeds, that all trainers end together.

The equations are printed with indices that do not agree with Table I. Here layer l reads rows of width f(l-1) along the edges into the
vertices of layer l, and maps these vertices to width f(l). A layer that concatenates (GraphSAGE) maps rows of width 2 f(l-1). What the
equations leave out is a part of :class:`Refinements`, by name; none of it is on in :data:`AS_PRINTED`.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sagann.errors import InputError
from sagann.hybrid.assignment import HOST, Assignment, StageTimes, Threads, split_evenly
from sagann.hybrid.balance import balanced
from sagann.hybrid.costs import Rates
from sagann.plan.machine import Link, Machine

if TYPE_CHECKING:
    from sagann.hardware.design import KernelDesign

VALUE_BYTES = 4
"Bytes of a feature, a weight and a gradient (S_feat)."
EDGE_BYTES = 8
"Bytes of an edge on its way to an accelerator: two ids of 32 bits."
ACCELERATOR = "accelerator"
"Names of accelerators begin with it, and end with a number from 0."
_ROUNDS = 12
"Times that the search corrects its rates."
# Iterations whose features are in the host's memory while loading, copying and training never wait; of mini-batches, in an accelerator's.
_IN_HOST, _IN_ACCELERATOR = 4, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """A model of L layers, as far as the equations know it."""

    features: tuple[int, ...]
    "Widths f(0) to f(L): of the features, of each hidden layer, of the result."
    concatenates: bool = False
    "Whether a vertex's own row is put beside its aggregate (GraphSAGE), so that layers have twice the weights."

    @property
    def model_bytes(self) -> int:
        return VALUE_BYTES * sum(self.inputs(before) * after for before, after in pairwise(self.features))

    def inputs(self, width: int) -> int:
        """Width of the rows that a layer maps, whose sources have rows of ``width``."""
        return 2 * width if self.concatenates else width


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCounts:
    """Vertices and edges of a mini-batch of L hops, by layer as in the paper's Table I."""

    vertices: tuple[float, ...]
    "Number of vertices of layers 0 to L: those whose features are loaded first, the seeds last."
    edges: tuple[float, ...]
    "Number of edges into the vertices of layers 1 to L."

    @property
    def num_edges(self) -> float:
        return sum(self.edges)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refinements:
    """What the paper's equations leave out."""

    launches: bool = True
    "A trainer loses ``step_s`` for every layer, forward and backward: more seconds of propagation."
    both_gradients: bool = True
    "The backward of a layer computes the gradients of its weights and of its inputs, so it maps twice, but for the first layer."
    copies_edges: bool = True
    "The edges of a mini-batch are copied to the accelerator beside its features: more bytes."
    shares_memory: bool = True
    "Loading and the processor's sums over edges share the host's memory, and delay each other: more seconds of both."
    clocks_kernels: bool = True
    "Hardware kernels take the cycles of their clock (:mod:`sagann.hardware`), not equations 10 to 12."


AS_PRINTED = Refinements(
    launches=False, both_gradients=False, copies_edges=False, shares_memory=False, clocks_kernels=False
)
"Equations 7 to 13 and nothing else."


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is trained, and by whom: a model on sampled mini-batches of a graph, on a machine."""

    machine: Machine
    "Rates of the processor, of the accelerators, and of the links into them."
    counts: Callable[[int], BatchCounts]
    "Vertices and edges of a mini-batch of so many seeds."
    num_train: int
    widths: Widths
    "The model; as many layers as a mini-batch has hops."
    sampled_edges_per_s: float
    "Edges that one thread of the processor samples per second, measured beforehand, as in the paper."
    refinements: Refinements = field(default_factory=Refinements)

    def counts_of(self, assignment: Assignment) -> dict[str, BatchCounts]:
        return {name: self.counts(seeds) for name, seeds in assignment.seeds.items() if seeds}

    def times(self, assignment: Assignment) -> StageTimes:
        """Seconds of every stage: what a run would measure.

        Where loading and the processor's trainer share memory, each runs at half its rate while the other is beside it: both take longer by
        the memory seconds of the shorter one.
        """
        machine, threads, counts = self.machine, assignment.threads, self.counts_of(assignment)
        loaded_bytes = sum(self.rows_bytes(each) for each in counts.values())
        load_s = loaded_bytes / min(machine.pick_bytes * threads.load, machine.copy_bytes)
        train_s = dict.fromkeys(assignment.seeds, 0.0)
        train_s |= {name: self.propagation_s(each, name, threads.train) for name, each in counts.items()}
        if self.refinements.shares_memory and HOST in counts:
            gathered_s = self._gathered_bytes(counts[HOST]) / machine.gather_bytes
            delay_s = min(loaded_bytes / machine.copy_bytes, gathered_s)
            load_s += delay_s
            train_s[HOST] += delay_s
        return StageTimes(
            sample=sum(each.num_edges for each in counts.values()) / (self.sampled_edges_per_s * threads.sample),
            load=load_s,
            transfer=self._transfer_s(assignment.accelerators, counts),
            train=train_s,
        )

    def rows_bytes(self, counts: BatchCounts) -> float:
        """Bytes of the features of a mini-batch: the numerators of equations 7 and 8."""
        return counts.vertices[0] * self.widths.features[0] * VALUE_BYTES

    def copied_bytes(self, counts: BatchCounts) -> float:
        """Bytes that an accelerator gets for a mini-batch (equation 8)."""
        return self.rows_bytes(counts) + (EDGE_BYTES * counts.num_edges if self.refinements.copies_edges else 0.0)

    def propagation_s(self, counts: BatchCounts, name: str, threads: int) -> float:
        """Seconds of the forward and backward of a mini-batch on a trainer (equation 10), which on the processor has so many threads."""
        device, kernel = self.machine.device(name), self.machine.kernel(name)
        part = min(1.0, threads / self.machine.num_cores) if name == HOST else 1.0
        launch_s = device.step_s if self.refinements.launches else 0.0
        if kernel is not None and self.refinements.clocks_kernels:
            # Forward and backward: their sequencer starts the layers.
            return 2 * launch_s + self._clocked_s(counts.vertices[-1], kernel)
        combined = max if self.machine.pipelines_layers(name) else sum
        total = 0.0
        for number, (gather_s, map_s) in enumerate(self._layers(counts, device)):
            # The features get no gradient.
            twice = 2 if number and self.refinements.both_gradients else 1
            for parts in ((gather_s, map_s), (gather_s if number else 0.0, twice * map_s)):
                total += launch_s + combined(parts) / part
        return total

    def _clocked_s(self, num_seeds: float, kernel: KernelDesign) -> float:
        """Seconds by the clock of hardware kernels, between those for the next powers of two seeds, so that few mini-batches are drawn."""
        # Imported here: few machines have kernels.
        from sagann.hardware.draw import expected_cycles

        below = 1 << int(num_seeds).bit_length() - 1
        near = [self.counts(size) for size in (below, 2 * below)[: 1 + (num_seeds > below)]]
        cycles = [
            expected_cycles(kernel, self.widths.features, each.vertices, each.edges, own=self.widths.concatenates)
            for each in near
        ]
        return float(np.interp(num_seeds, [each.vertices[-1] for each in near], cycles)) / kernel.frequency_hz

    def synchronise_s(self, names: Sequence[str]) -> float:
        """Seconds in which several trainers add their gradients: to the host, and the mean back (equation 13)."""
        rates = [self._link(name).bytes_per_s if name != HOST else self.machine.copy_bytes for name in names]
        return 2 * self.widths.model_bytes / min(rates) if len(names) > 1 else 0.0

    def _layers(self, counts: BatchCounts, device: Machine) -> Iterator[tuple[float, float]]:
        """Seconds of aggregation (equation 11) and of the map (equation 12) of each layer."""
        for layer, (before, after) in enumerate(pairwise(self.widths.features)):
            gather_s = counts.edges[layer] * before * VALUE_BYTES / device.gather_bytes
            multiply_adds = counts.vertices[layer + 1] * self.widths.inputs(before) * after
            yield gather_s, 2 * multiply_adds / device.matmul_flops

    def _gathered_bytes(self, counts: BatchCounts) -> float:
        """Bytes of rows that the forward and backward of a mini-batch read along edges: the numerators of equation 11."""
        widths = self.widths.features[:-1]
        first, *others = (edges * width * VALUE_BYTES for edges, width in zip(counts.edges, widths, strict=True))
        return first + 2 * sum(others)

    def _transfer_s(self, accelerators: Sequence[str], counts: Mapping[str, BatchCounts]) -> dict[str, float]:
        """Seconds of the copies to accelerators, which share the switches that their links name."""
        copied = {name: self.copied_bytes(counts[name]) if name in counts else 0.0 for name in accelerators}
        links = {name: self._link(name) for name in copied}
        shared_s = {
            switch: sum(count for name, count in copied.items() if switch in links[name].switches) / rate
            for switch, rate in self.machine.switches.items()
        }

        def copy_s(name: str, count: float) -> float:
            link = links[name]
            own_s = link.latency_s + count / link.bytes_per_s
            return max([own_s, *(shared_s[switch] for switch in link.switches)])

        return {name: copy_s(name, count) if count else 0.0 for name, count in copied.items()}

    def _link(self, name: str) -> Link:
        return self.machine.links[f"{name}.copy_in"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Hybrid training as it is expected to run."""

    assignment: Assignment
    times: StageTimes
    "Seconds of each stage alone."
    iteration_s: float
    epoch_s: float
    num_iterations: int
    edges_per_s: float
    "Sampled edges of an iteration over its seconds (equation 5; MTEPS are a millionth of it)."
    peak_bytes: int
    "Bytes of mini-batches, about, that one memory holds at a time."


def predict(job: Job, assignment: Assignment) -> Prediction:
    """An epoch with an assignment: the first iteration passes all stages, each further one takes the slowest of them."""
    require_accelerators(job.machine, assignment.accelerators)
    times, counts = job.times(assignment), job.counts_of(assignment)
    num_iterations = -(-job.num_train // assignment.total)
    synchronise_s = job.synchronise_s(list(counts))
    iteration_s = max(times.slowest, max(times.train.values()) + synchronise_s)
    fed_s = max(times.transfer.get(name, 0.0) + train_s for name, train_s in times.train.items())
    first_s = times.sample + times.load + fed_s + synchronise_s
    loaded_bytes = sum(map(job.rows_bytes, counts.values()))
    copied_bytes = max((job.copied_bytes(each) for name, each in counts.items() if name != HOST), default=0.0)
    peak_bytes = max(_IN_HOST * loaded_bytes, _IN_ACCELERATOR * copied_bytes + job.widths.model_bytes)
    return Prediction(
        assignment=assignment,
        times=times,
        iteration_s=iteration_s,
        epoch_s=first_s + (num_iterations - 1) * iteration_s,
        num_iterations=num_iterations,
        edges_per_s=sum(each.num_edges for each in counts.values()) / iteration_s,
        peak_bytes=round(peak_bytes),
    )


def best_split(job: Job, *, total: int, accelerators: tuple[str, ...], uses_host: bool = True) -> Prediction:
    """The prediction with the split of seeds and threads under which the slowest stage is fastest; as many threads as the machine has
    cores.

    The processor gets no seed where accelerators alone are faster, or where it may not train (``uses_host``).
    """
    require_accelerators(job.machine, accelerators)
    sample, load, train = split_evenly(max(job.machine.num_cores, 3), 3)
    found = list[tuple[float, Assignment]]()
    for with_host in {uses_host, False}:
        names = [HOST] * with_host + list(accelerators)
        seeds = {HOST: 0} | dict(zip(names, split_evenly(total, len(names)), strict=True))
        assignment = Assignment(seeds=seeds, threads=Threads(sample=sample, load=load, train=train))
        for _ in range(_ROUNDS):
            times = job.times(assignment)
            found.append((times.slowest, assignment))
            if with_host:
                # Accelerators may be in the way however few seeds they have, as where each copy takes long.
                alone = replace(assignment, seeds=dict.fromkeys(assignment.seeds, 0) | {HOST: total})
                found.append((job.times(alone).slowest, alone))
            assignment = balanced(assignment, Rates.of(assignment, times), uses_host=with_host)
    return predict(job, min(found, key=lambda each: each[0])[1])


def with_accelerators(machine: Machine, count: int) -> Machine:
    """The machine with ``count`` accelerators, all as its first one."""
    first = f"{ACCELERATOR}0"
    require_accelerators(machine, (first,))
    kept = {name: link for name, link in machine.links.items() if not name.startswith(ACCELERATOR)}
    names = accelerator_names(count)
    return replace(
        machine,
        devices=dict.fromkeys(names, machine.devices[first]),
        links=kept | {f"{name}.copy_in": machine.links[f"{first}.copy_in"] for name in names},
    )


def accelerator_names(count: int) -> tuple[str, ...]:
    """Names of the first accelerators."""
    return tuple(f"{ACCELERATOR}{number}" for number in range(count))


def require_accelerators(machine: Machine, names: tuple[str, ...]) -> None:
    """Raise InputError unless a machine describes accelerators and the links into them."""
    for name in names:
        if name not in machine.devices or f"{name}.copy_in" not in machine.links:
            known = [each for each in machine.devices if f"{each}.copy_in" in machine.links]
            raise InputError(
                f"machine lacks an accelerator: '{name}', and there are {', '.join(known) or 'none'} (in "
                f"{machine.name})",
                hint=f'Add [devices.{name}] with its rates and [links."{name}.copy_in"] with bytes_per_s to the machine\'s file.',
            )

"""Rehearsed: what shares of several sizes took each trainer of this machine, in place of the equations' seconds.

The equations know rates. What they leave out (the program's own seconds for each layer, rows that lie apart, checksums, gradients that are
added, the optimizer) is in the seconds of a rehearsal, which trains real mini-batches of the run, each stage by itself
(:mod:`sagann.train.rehearsed_trainers`). Between the sizes that were rehearsed, seconds and bytes are a straight line; below the smallest one,
the line through the two smallest.

How stages work ahead, share cores and wait for each other is simulated as that of any other iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from sagann.errors import InputError
from sagann.plan.hybrid.assignment import HOST, Assignment
from sagann.plan.hybrid.iteration_work import IterationWork, Prefetch
from sagann.plan.hybrid.work import synchronisation_bytes

_LEAST_S = 1e-9
"A stage takes time."


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsedShare:
    """What a share of a mini-batch took."""

    seeds: float
    "Number of its seeds."
    edges: float
    "Number of its edges."
    loaded_bytes: float
    "Bytes of features that are loaded for it."
    copied_bytes: float
    "Bytes that travel to the trainer; 0 for the processor."
    sample_s: float
    "Seconds that a thread samples it."
    load_s: float
    "Seconds that a thread loads its features."
    copy_s: float
    "Seconds of its copy to the trainer; 0 for the processor."
    copy_core_s: float
    "Seconds of that for which a core of the processor is busy."
    train_s: float
    "Seconds of its propagation, with what the trainer does before and after it."


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsedJob:
    """What is trained, with what shares of it took trainers of this machine."""

    num_train: int
    "Number of training vertices, the seeds of an epoch."
    shares: Mapping[str, tuple[RehearsedShare, ...]]
    "By trainer, shares of at least two sizes, the smallest first. An accelerator that is missing is like the last one."
    threads: int
    "Threads of the processor's trainer."
    model_bytes: int
    "Bytes of all weights."
    synchronise_s: float
    "Seconds from the last gradient to the next launch: gradients are added, and the optimizer steps."
    prefetch: Prefetch = "two stages"
    "How far stages work ahead."

    def share_of(self, name: str, seeds: int) -> RehearsedShare:
        """What a share of so many seeds is expected to take a trainer."""
        known = self.shares.get(name) or self.shares[list(self.shares)[-1]]
        sizes = np.array([each.seeds for each in known])

        def at(field: str) -> float:
            values = np.array([getattr(each, field) for each in known])
            if seeds >= sizes[0]:
                return float(np.interp(seeds, sizes, values))
            slope = (values[1] - values[0]) / (sizes[1] - sizes[0])
            return max(0.0, float(values[0] + slope * (seeds - sizes[0])))

        return RehearsedShare(**{each.name: at(each.name) for each in fields(RehearsedShare)})

    def work(self, assignment: Assignment) -> IterationWork:
        """The work of every stage, each with the cores of its threads.

        Raises:
            InputError: a trainer has more seeds than were rehearsed.
        """
        found = {name: self.share_of(name, seeds) for name, seeds in assignment.seeds.items() if seeds}
        threads = assignment.threads
        most = max(each.seeds for each in next(iter(self.shares.values())))
        if assignment.total > most:
            raise InputError(
                f"more seeds than were rehearsed: {assignment.total}, rehearsed {most:g} (in RehearsedJob.work)",
                hint="Rehearse with the batch size of the run.",
            )
        train_s = {name: max(each.train_s, _LEAST_S) for name, each in found.items()}
        if HOST in train_s:
            train_s[HOST] *= self.threads / threads.train
        load_s = max(sum(each.load_s for each in found.values()) / threads.load, _LEAST_S)
        loaded = max(1.0, sum(each.loaded_bytes for each in found.values()))
        others = {name: each for name, each in found.items() if name != HOST}
        return IterationWork(
            sample_s=sum(each.sample_s for each in found.values()) / threads.sample,
            load_bytes=loaded,
            load_bytes_per_s=loaded / load_s,
            copied_bytes={name: each.copied_bytes for name, each in others.items()},
            copy_core_s=sum(each.copy_core_s for each in others.values()),
            propagate_s=train_s,
            num_edges=sum(each.edges for each in found.values()),
            copy_bytes_per_s={
                name: max(1.0, each.copied_bytes) / max(each.copy_s, _LEAST_S) for name, each in others.items()
            },
            synchronise_bytes_per_s=synchronisation_bytes(self.model_bytes) / max(self.synchronise_s, _LEAST_S),
            synchronise_core_s=self.synchronise_s,
        )

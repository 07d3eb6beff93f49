"""SharedBatches: the iterations of an epoch, each divided among the trainers, sampled, loaded and transferred ahead of them.

Seeds, picked edges and random numbers of an iteration depend on the run's seed, the epoch and the batch alone. So the trainers together
compute the loss of the whole mini-batch, whatever their shares are. A vertex that several trainers need is sampled, loaded and transferred
for each.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-B (two-stage feature prefetch): loading and transfer are stages of their own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from sagann.graph.random_numbers import key_of
from sagann.hybrid.assignment import HOST, Assignment, StageTimes, Threads
from sagann.hybrid.manager import Manager
from sagann.hybrid.trainer import Share, Trainer
from sagann.kernels.seeds import NUM_SEEDS
from sagann.runtime.loading import MiniBatch, MiniBatches, Pipeline
from sagann.runtime.loading.batches import size_of_rows
from sagann.runtime.loading.pipeline import Size, Stage
from sagann.runtime.recorder import Recorder
from sagann.sampling.arguments import TRAINERS


@dataclass(kw_only=True, slots=True)
class Iteration:
    """An iteration on its way to the trainers."""

    epoch: int
    number: int
    assignment: Assignment
    "Seeds of each trainer, and threads of the processor, with which the iteration was prepared."
    ahead: int
    "Most iterations that were prepared at the same time."
    sampled: dict[str, MiniBatch] = field(default_factory=dict)
    "Sampled blocks of each trainer that has a seed."
    sent: dict[str, Any] = field(default_factory=dict)
    "Each trainer's share, by name: what the trainer's ``load`` has returned, and after the transfer what its ``send`` has."
    num_edges: int = 0
    sample_s: float = 0.0
    load_s: float = 0.0
    loaded_bytes: int = 0
    transfer_s: dict[str, float] = field(default_factory=dict)
    train_s: dict[str, float] = field(default_factory=dict)
    simulation_s: dict[str, float] = field(default_factory=dict)
    launched_s: float = 0.0
    trained_s: float = 0.0
    "Seconds from the launch of the trainers to the sum of their gradients."

    @property
    def name(self) -> str:
        """For errors, as 'epoch 1, batch 0'."""
        return f"epoch {self.epoch}, batch {self.number}"

    @property
    def num_seeds(self) -> int:
        return self.assignment.total

    def times(self, train_s: Mapping[str, float]) -> StageTimes:
        """Seconds of the stages, given those of the trainers. Threads count as far as there are iterations to work on."""
        threads = self.assignment.threads
        part = min(1.0, self.ahead / filling_ahead(threads))
        return StageTimes(
            sample=self.sample_s / max(1.0, part * threads.sample),
            load=self.load_s / max(1.0, part * threads.load),
            transfer=self.transfer_s,
            train=dict.fromkeys(self.assignment.seeds, 0.0) | dict(train_s),
        )


def filling_ahead(threads: Threads) -> int:
    """How many iterations keep all threads busy: each thread that samples or loads works on another one, and one more is on its way to the trainers."""
    return threads.sample + threads.load + 1


class SharedBatches:
    """Divides the mini-batches of a graph among trainers, by name; that of the processor, if it trains, first.

    At most ``ahead`` iterations are prepared before the trainers need them; 0 prepares each one when it is needed. None stands for as many
    as keep all threads busy (:func:`filling_ahead`), but not more than the processor has cores, and at least 2.
    """

    def __init__(
        self,
        minibatches: MiniBatches,
        manager: Manager,
        trainers: Mapping[str, Trainer],
        *,
        ahead: int | None = None,
        trace: Recorder | None = None,
    ) -> None:
        self._minibatches, self._manager, self._trainers, self._ahead = minibatches, manager, trainers, ahead
        self._trace = trace

    @property
    def ahead(self) -> int:
        """Most iterations that are prepared ahead with the present threads."""
        if self._ahead is not None:
            return self._ahead
        return min(filling_ahead(self._manager.assignment.threads), max(2, self._manager.cores))

    def iterations(self, epoch: int, *, first: int = 0) -> Pipeline[Iteration]:
        seeds, manager = self._minibatches.items_of(epoch), self._manager
        for trainer in self._trainers.values():
            trainer.begin()

        def sample(number: int) -> Iteration:
            since_s = time.perf_counter()
            assignment = manager.share_out(len(seeds[number]))
            iteration = Iteration(epoch=epoch, number=number, assignment=assignment, ahead=self.ahead)
            begin = 0
            for name, count in assignment.seeds.items():
                if count:
                    self.sample(iteration, name, seeds[number], slice(begin, begin + count))
                begin += count
            iteration.sample_s = self._ended("sample", iteration, since_s)
            return iteration

        def load(iteration: Iteration) -> Iteration:
            since_s = time.perf_counter()
            for name in iteration.sampled:
                self.load(iteration, name)
            iteration.sampled.clear()
            iteration.load_s = self._ended("load", iteration, since_s)
            return iteration

        most = manager.assignment.threads.total
        stages = [
            Stage(name="sample", work=sample, threads=most, limit=lambda: manager.assignment.working.sample),
            Stage(
                name="load",
                work=load,
                threads=most,
                limit=lambda: manager.assignment.working.load,
                size_of=lambda iteration: Size(num_bytes=iteration.loaded_bytes),
            ),
            *(
                Stage(name=f"transfer to {name}", work=partial(self.transfer, name))
                for name in self._trainers
                if name != HOST
            ),
        ]
        numbers = range(first, len(seeds))
        # A further iteration is prepared when the trainers have been launched: before, it would delay all of them on a core that they share.
        most_ahead = most if self._ahead is None else self._ahead
        item = f"epoch {epoch}, batch"
        return Pipeline(numbers, stages, ahead=most_ahead, item=item, room=lambda: self.ahead, holds=True)

    def sample(self, iteration: Iteration, name: str, seeds: Tensor, own: slice) -> None:
        """Sample the neighbours of a trainer's part of the seeds."""
        given = {"epoch": iteration.epoch, "batch": iteration.number}
        iteration.sampled[name] = self._trainers[name].sample(self._minibatches, seeds, own, **given)
        iteration.num_edges += iteration.sampled[name].num_edges

    def load(self, iteration: Iteration, name: str) -> None:
        """Load the features of a trainer's share, and pack it."""
        # The same for all trainers: masks then depend on the vertex.
        key = key_of(self._minibatches.neighbor_sampler.seed, TRAINERS, iteration.epoch, iteration.number)
        share = Share(
            batch=iteration.sampled[name],
            weight=iteration.assignment.seeds[name] / iteration.num_seeds,
            seed=int(key) % NUM_SEEDS,
            iteration=iteration.name,
        )
        iteration.sent[name], batch = self._trainers[name].load(share, self._minibatches)
        iteration.loaded_bytes += size_of_rows(batch.features, 0).num_bytes

    def transfer(self, name: str, iteration: Iteration) -> Iteration:
        if name in iteration.sent:
            since_s = time.perf_counter()
            iteration.sent[name] = self._trainers[name].send(iteration.sent[name])
            iteration.transfer_s[name] = self._ended(f"transfer to {name}", iteration, since_s)
        return iteration

    def _ended(self, stage: str, iteration: Iteration, since_s: float) -> float:
        """Seconds of a stage that ends now, which are recorded."""
        seconds = time.perf_counter() - since_s
        if self._trace is not None:
            self._trace.add(stage, iteration.name, since_s, seconds)
        return seconds

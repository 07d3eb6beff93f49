"""RehearsedTrainers: the trainers of a run train shares of some mini-batches, and each stage is measured by itself.

Shares have a few sizes, up to a whole mini-batch for each trainer. They are sampled, loaded and sent one after the other, on a thread like those
that work ahead in a run. Then all trainers propagate their shares at the same time, so that what they lose by sharing memory is in
their seconds. A few iterations follow one another without a rest, as in a run: a process with a quota of a core that has rested
is faster for a moment. How stages share cores and wait for each other is simulated
(:class:`sagann.plan.hybrid.rehearsed.RehearsedJob`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from sagann.hybrid.host_cores import on_cores
from sagann.hybrid.shared_batches import Iteration, SharedBatches
from sagann.hybrid.synchronise import synchronised
from sagann.plan.hybrid.assignment import HOST, Assignment
from sagann.plan.hybrid.rehearsed import RehearsedJob, RehearsedShare
from sagann.plan.hybrid.work import EDGE_BYTES
from sagann.runtime.loading.serial_thread import work_serially
from sagann.train.hybrid_epochs import HybridEpochs

FEWEST_ROUNDS = 3
"Fewest times that every size is measured, however long that takes."
MOST_ROUNDS = 12
"Most times that every size is measured."
LONGEST_S = 8.0
"Seconds after which no more rounds begin."
_SIZES = 4
"Sizes of shares: a mini-batch, and a half of each one for the next."
# In the first round kernels are compiled, and memory is touched for the first time.
_WARM_UP = 1
_IN_A_ROW = 3
"Iterations that follow one another; the first one, before which trainers have rested, does not count."


class _Measured(NamedTuple):
    """What an iteration of a rehearsal took."""

    shares: Mapping[str, RehearsedShare]
    "What its share took each trainer, by the trainer's name."
    synchronise_s: float
    "Seconds from the last gradient on."


class RehearsedTrainers(HybridEpochs):
    """The trainers of a rehearsal, which trains single iterations, and no epoch."""

    def try_out(self) -> None:
        """Make the lazy parameters of the model, before accelerators get copies of it."""
        sampled = self._minibatches.neighbor_sampler.sample(self._minibatches.seeds[:1]).prepare()
        with torch.no_grad():
            self._predictor.forward_batch(self._minibatches.load(sampled))

    def rehearse(self, optimizer: torch.optim.Optimizer, *, longest_s: float | None = None) -> RehearsedJob:
        """Start the trainers and measure them. The model is trained on the way.

        Args:
            optimizer: steps the model's parameters.
            longest_s: seconds after which no more rounds begin, but for the fewest; None for :data:`LONGEST_S`.
        """
        self.open()
        total = self.manager.assignment.total
        sizes = sorted({max(1, total >> halvings) for halvings in range(_SIZES)})
        found: dict[int, list[_Measured]] = {size: [] for size in sizes}
        before, seeds = torch.get_num_threads(), self._whole_batches(total)
        try:
            with on_cores(self._own_cores), ThreadPoolExecutor(1, "sagann-rehearsal", work_serially) as thread:
                self._rehearse(thread, seeds, found, optimizer, LONGEST_S if longest_s is None else longest_s)
        finally:
            torch.set_num_threads(before)
        every = [each for rounds in found.values() for each in rounds]
        return RehearsedJob(
            num_train=len(self._minibatches.seeds),
            shares={
                name: tuple(_typical([each.shares[name] for each in found[size]]) for size in sizes)
                for name in self.trainers
            },
            threads=self.manager.assignment.threads.train,
            model_bytes=sum(each.nbytes for each in self._parameters),
            synchronise_s=median(each.synchronise_s for each in every),
        )

    def _rehearse(
        self,
        thread: ThreadPoolExecutor,
        seeds: Iterator[Tensor],
        found: Mapping[int, list[_Measured]],
        optimizer: torch.optim.Optimizer,
        longest_s: float,
    ) -> None:
        """Train shares of every size in turn, until it was often enough or the time is up."""
        batches = SharedBatches(self._minibatches, self.manager, self.trainers)
        ends_s, numbers = 0.0, itertools.count()
        for number in range(_WARM_UP + MOST_ROUNDS):
            if number == _WARM_UP:
                ends_s = time.perf_counter() + longest_s
            if number >= _WARM_UP + FEWEST_ROUNDS and time.perf_counter() > ends_s:
                return
            for size, measured in found.items():
                prepared = []
                for _ in range(_IN_A_ROW):
                    ids = {name: next(seeds)[:size] for name in self.trainers}
                    assignment = Assignment(
                        seeds={HOST: 0} | dict.fromkeys(ids, size), threads=self.manager.assignment.threads
                    )
                    iteration = Iteration(epoch=1, number=next(numbers), assignment=assignment, ahead=batches.ahead)
                    prepared.append((iteration, thread.submit(_prepared, batches, iteration, ids).result()))
                trained = [self._trained(iteration, shares, optimizer) for iteration, shares in prepared]
                if number >= _WARM_UP:
                    measured += trained[1:]

    def _trained(
        self, iteration: Iteration, prepared: Mapping[str, RehearsedShare], optimizer: torch.optim.Optimizer
    ) -> _Measured:
        """Propagate an iteration, and step."""
        optimizer.zero_grad()
        found, train_s = self._propagated(iteration)
        since_s = time.perf_counter()
        loss = synchronised(found, self._parameters, iteration.name)
        loss.backward()
        # LBFGS asks for the loss again; the gradients are there.
        optimizer.step(lambda: loss)  # type: ignore[arg-type, return-value]
        synchronise_s = time.perf_counter() - since_s
        for name, sent in iteration.sent.items():
            self.trainers[name].release(sent)
        shares = {name: replace(each, train_s=train_s[name]) for name, each in prepared.items()}
        return _Measured(shares, synchronise_s)

    def _whole_batches(self, total: int) -> Iterator[Tensor]:
        """The seeds of mini-batches, without a smaller one at the end of an epoch, again and again."""
        whole = [each for each in self._minibatches.seeds_of(1) if len(each) == total]
        return itertools.cycle(whole)


def _prepared(batches: SharedBatches, iteration: Iteration, ids: Mapping[str, Tensor]) -> dict[str, RehearsedShare]:
    """Sample, load and send the shares of an iteration, one after the other. Seconds of propagation are still missing."""
    found = {}
    for name, seeds in ids.items():
        edges, is_sent = iteration.num_edges, name != HOST
        ends_s = [time.perf_counter()]
        batches.sample(iteration, name, seeds)
        ends_s.append(time.perf_counter())
        batches.load(iteration, name)
        ends_s.append(time.perf_counter())
        core_since_s = time.thread_time()
        if is_sent:
            batches.transfer(name, iteration)
        copy_core_s = time.thread_time() - core_since_s
        ends_s.append(time.perf_counter())
        sample_s, load_s, copy_s = (end - begin for begin, end in pairwise(ends_s))
        edges, loaded_bytes = iteration.num_edges - edges, iteration.loaded_bytes[name]
        found[name] = RehearsedShare(
            seeds=len(seeds),
            edges=edges,
            loaded_bytes=loaded_bytes,
            copied_bytes=loaded_bytes + EDGE_BYTES * edges if is_sent else 0.0,
            sample_s=sample_s,
            load_s=load_s,
            copy_s=copy_s if is_sent else 0.0,
            copy_core_s=copy_core_s if is_sent else 0.0,
            train_s=0.0,
        )
    return found


def _typical(shares: Sequence[RehearsedShare]) -> RehearsedShare:
    """The median of each number."""
    return RehearsedShare(
        **{each.name: median(getattr(share, each.name) for share in shares) for each in fields(RehearsedShare)}
    )

"""Forecast of an epoch of mini-batches: some batches are made and trained as in a run, and an epoch is foretold from them.

The first batches compile kernels and are not counted. A short epoch is rehearsed as a whole, several times if there is time; of a long one,
the first batches. Then an epoch takes the seconds up to the end of the first step, and for each further batch the mean from one step's end to
the next. What the tiers of a store give to these batches, which follow one another as in an epoch, is what they give to all. The forecast
is of training alone, without evaluation. A file that features are mapped from counts as it is found: in the page cache, or on the disk.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. V (the stages of an iteration, and its bottleneck). We measure the stages together.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from sagann.graph.feature_store import Features
from sagann.runtime.loading.stages import StageCounters
from sagann.runtime.processor import num_cores
from sagann.runtime.tiered.counters import TierCounts, Traffic
from sagann.storage.mapped import mapped_rows
from sagann.train.epoch_source import TrainStep
from sagann.train.sampled_epochs import SampledEpochs
from sagann.train.session import TrainSession

TRAINING = "train"
"Name of the stage that is the training step."
FEWEST_BATCHES = 3
"Fewest batches of a round, or all of an epoch, however long they take."
MOST_BATCHES = 24
"Most batches of a round."
LONGEST_S = 10.0
"Seconds after which no more batches are trained."
_ROUNDS = 5
# No epoch of a rehearsal is evaluated.
_NEVER = 2**62


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledForecast:
    """An epoch of mini-batches as it is expected to run."""

    seconds: float
    "Seconds of an epoch."
    num_batches: int
    "Number of batches of an epoch."
    num_rehearsed: int
    "Number of batches that were measured."
    num_seeds: int
    "Number of training vertices of an epoch."
    batch_size: int
    "Number of training vertices of a whole batch."
    fanouts: tuple[int, ...]
    "Number of in-edges that a vertex picks, for each hop."
    num_edges: int
    "Sampled edges of an epoch."
    tiers: Mapping[str, TierCounts]
    """Rows and bytes of features of an epoch by the tier that gives them: 'memory', 'file' where they are mapped from a file, 'hot' and
    'cold' of a store with tiers, or the class of another feature store."""
    ahead: int
    "Number of batches that are made ahead of the training step; 0 where it makes them itself."
    ahead_bytes: int
    "Bytes of the batches that are in memory at a time, at most: those ahead, the one that is trained, and blocks that are sampled further ahead."
    busy: Mapping[str, float]
    "By stage, the share of the epoch for which its threads are busy; the training step is 'train'."
    busy_cores: float
    "Share of the processor's cores that are busy."

    @property
    def num_bytes(self) -> int:
        """Bytes of features that an epoch loads, from all tiers."""
        return sum(each.num_bytes for each in self.tiers.values())

    @property
    def bottleneck(self) -> str:
        """The stage whose threads are busy for the largest share of the epoch."""
        return max(self.busy, key=self.busy.__getitem__)


class Round(NamedTuple):
    """Batches that went through the pipeline and were trained."""

    counters: tuple[StageCounters, ...]
    "What each stage has done, the caller at last."
    num_batches: int
    "Number of batches that were trained."
    first_s: float
    "Seconds until the first step ended."
    seconds: float
    "Seconds until the last step ended."
    train_s: float
    "Seconds of the training steps."
    core_s: float
    "Seconds that all cores together were busy."


class RehearsedEpochs(SampledEpochs):
    """The epoch source of a rehearsal: an epoch has its first batches alone."""

    _rounds: list[Round]
    _deadline_s = 0.0

    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        since_s, core_since_s, train_s, ends_s = time.perf_counter(), time.process_time(), 0.0, list[float]()
        with self._minibatches.batches(epoch) as batches:
            for batch in batches:
                begin_s = time.perf_counter()
                yield self.step(batch)
                train_s += time.perf_counter() - begin_s
                ends_s.append(time.perf_counter() - since_s)
                count = len(ends_s)
                is_late = count >= FEWEST_BATCHES and time.perf_counter() > self._deadline_s
                if count == MOST_BATCHES or is_late:
                    break
            if self._predictor.device.type == "cuda":
                torch.cuda.synchronize(self._predictor.device)
                ends_s[-1] = time.perf_counter() - since_s
            core_s = time.process_time() - core_since_s
            self._rounds.append(Round(batches.counters, len(ends_s), ends_s[0], ends_s[-1], train_s, core_s))

    def try_out(self) -> None:
        """Make the lazy parameters of the model."""
        with self._minibatches.batches(0) as batches, torch.no_grad():
            self._predictor.forward_batch(next(batches))

    def forecast(self, session: TrainSession) -> SampledForecast:
        """Rehearse, and foretell an epoch.

        Args:
            session: trains on this source, with a model of its own.
        """
        # No epoch is evaluated, and no learning rate changes.
        session.config = replace(session.config, epochs=_NEVER, eval_every=_NEVER)
        session.scheduler = None
        self._rounds = []
        # The first batches compile kernels.
        session.run_epoch()
        self._rounds.clear()
        store = self._store
        self._deadline_s = time.perf_counter() + LONGEST_S
        traffic = None
        while not self._rounds or (len(self._rounds) < _ROUNDS and time.perf_counter() < self._deadline_s):
            before = None if store is None else store.traffic()
            session.run_epoch()
            if before is not None and store is not None:
                traffic = store.traffic() - before
        return self.foretold(self._rounds, traffic)

    def foretold(self, rounds: list[Round], traffic: Traffic | None = None) -> SampledForecast:
        """The forecast of an epoch from rounds of its batches, and from what the tiers of a store gave to the last of them."""
        batches = self._minibatches
        num_batches, num_seeds = len(batches), len(batches.seeds)
        stages = batches.stages(1).stages
        counters = [each.counters for each in rounds]
        busy = {
            stage.name: median(
                each.counters[at].busy_s / each.seconds / (min(stage.threads, num_batches) if batches.ahead else 1)
                for each in rounds
            )
            for at, stage in enumerate(stages)
        }
        busy[TRAINING] = median(each.train_s / each.seconds for each in rounds)
        sampled, loaded = (
            next(at for at, stage in enumerate(stages) if stage.name == name) for name in ("sample", "load")
        )

        def in_epoch(at: int, count: str) -> int:
            """Rows or bytes of an epoch from those of the seeds that a stage has worked on."""
            made = [
                (getattr(each[at], count), min(each[at].items * batches.batch_size, num_seeds)) for each in counters
            ]
            return round(num_seeds * sum(found for found, _ in made) / sum(seeds for _, seeds in made))

        most_bytes = [max(each[at].most_bytes for each in counters) for at in range(len(stages))]
        on_their_way = min(batches.ahead + 1, num_batches)
        return SampledForecast(
            seconds=median(_seconds(each, num_batches, num_seeds / batches.batch_size) for each in rounds),
            num_batches=num_batches,
            num_rehearsed=sum(each.num_batches for each in rounds),
            num_seeds=num_seeds,
            batch_size=batches.batch_size,
            fanouts=batches.neighbor_sampler.fanouts,
            num_edges=in_epoch(sampled, "rows"),
            tiers=_tiers(batches.graph.features, in_epoch(loaded, "rows"), in_epoch(loaded, "num_bytes"), traffic),
            ahead=batches.ahead,
            ahead_bytes=on_their_way * sum(most_bytes)
            + min(batches.window, num_batches - on_their_way) * most_bytes[sampled],
            busy=busy,
            busy_cores=median(each.core_s / each.seconds / num_cores() for each in rounds),
        )


def _seconds(measured: Round, num_batches: int, num_whole: float) -> float:
    """Seconds of an epoch of ``num_whole`` batches, the last one a part of a batch perhaps."""
    if measured.num_batches == num_batches:
        return measured.seconds
    return measured.first_s + (num_whole - 1) * (measured.seconds - measured.first_s) / (measured.num_batches - 1)


def _tiers(features: Features | None, rows: int, num_bytes: int, traffic: Traffic | None) -> dict[str, TierCounts]:
    """Rows and bytes by the tier that gives them."""
    if traffic is not None and traffic.rows:
        hot = TierCounts(rows=round(rows * traffic.hit_rate), num_bytes=round(num_bytes * traffic.hit_rate))
        return {"hot": hot, "cold": TierCounts(rows=rows, num_bytes=num_bytes) - hot}
    tier = "memory"
    if not isinstance(features, Tensor | None):
        tier = type(features).__name__
    elif features is not None and mapped_rows(features) is not None:
        tier = "file"
    return {tier: TierCounts(rows=rows, num_bytes=num_bytes)}

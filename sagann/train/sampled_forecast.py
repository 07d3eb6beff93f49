"""Forecast of an epoch of mini-batches: some batches are sampled, loaded and trained, and an epoch is simulated from their work.

The first batches compile kernels and are not counted. Every stage is measured alone (:mod:`sagann.runtime.loading.rehearsal`); the
simulation says how the stages share the cores (:mod:`sagann.plan.pipeline`). Then some batches go through the pipeline as in training. Their
seconds over the simulated ones are a factor for the whole epoch: what stages lose beside one another in caches and memory bandwidth. What
the tiers of a store give to these batches, which follow one another as in an epoch, is what they give to all. The forecast is of training
alone, without evaluation.

A short epoch is rehearsed as a whole, several times if there is time; of a long one, some whole batches over the epoch, and the last
batch if it is smaller. Seconds are means without the largest and the smallest eighth, and sizes are means. A file that features are mapped from counts as it is found:
in the page cache, or on the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sagann.config import TrainConfig
from sagann.graph.feature_store import Features
from sagann.plan.pipeline import (
    PipelinedEpoch,
    PipelineStage,
    SimulatedEpoch,
    StageWork,
    simulate_epoch,
    with_options,
)
from sagann.runtime.loading import MiniBatches
from sagann.runtime.loading.minibatches import useful_ahead
from sagann.runtime.loading.rehearsal import RehearsedStage, Stopwatch, rehearsed
from sagann.runtime.loading.stages import Size
from sagann.runtime.processor import num_cores
from sagann.runtime.tiered.counters import TierCounts, Traffic
from sagann.storage.mapped import mapped_rows
from sagann.train.epoch_source import TrainStep
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph
from sagann.train.sampled_epochs import KeptTiers, SampledEpochs
from sagann.train.session import TrainSession

TRAINING = "train"
"Name of the stage that is the training step."
FEWEST_BATCHES = 3
"Fewest batches that are measured, however long they take."
MOST_BATCHES = 24
"Most batches that are measured."
LONGEST_S = 10.0
"Seconds after which no more batches are measured, of each stage by itself and then of all stages together."
# Share of these seconds for stages by themselves. They tell how the stages share the cores. How long a batch takes is told by all stages
# together, and needs many batches where features come from a disk: one may take several times as long as the next.
_ALONE_SHARE = 0.3
# Most times that batches go through the pipeline.
_ROUNDS = 5
# An option that is tried makes twice as many threads, or batches ahead, of those that there are.
_TIMES = 2
# No epoch of a rehearsal is evaluated.
_NEVER = 2**62


@runtime_checkable
class HasTraffic(Protocol):
    """A feature store that counts what each of its tiers gives."""

    def traffic(self) -> Traffic:
        """Rows and bytes that each tier has given so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Options of a run, and the epoch with them."""

    threads: int
    "``TrainConfig.sampling_threads``."
    ahead: int
    "``TrainConfig.batches_ahead``."
    seconds: float
    "Seconds of an epoch."


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledForecast:
    """An epoch of mini-batches as it is expected to run."""

    simulated: SimulatedEpoch
    "Seconds, and the work of each stage."
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
    batch_bytes: int
    "Bytes of the largest measured batch: blocks and features."
    sampled_bytes: int
    "Bytes of the blocks of the largest measured batch."
    changes: tuple[Change, ...]
    "Options with more threads and with more batches ahead, with the seconds that they would give."

    @property
    def seconds(self) -> float:
        """Seconds of an epoch."""
        return self.simulated.seconds

    @property
    def num_bytes(self) -> int:
        """Bytes of features that an epoch loads, from all tiers."""
        return sum(each.num_bytes for each in self.tiers.values())

    @property
    def ahead_bytes(self) -> int:
        """Bytes of the batches that are in memory at a time, at most: those ahead, the one that is trained, and the blocks of a window."""
        epoch = self.simulated.epoch
        loaded = min(epoch.ahead + 1, epoch.num_batches)
        return loaded * self.batch_bytes + min(epoch.window, epoch.num_batches - loaded) * self.sampled_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What was measured of one batch."""

    number: int
    "Number of the batch in its epoch."
    stages: tuple[RehearsedStage, ...]
    "The stages that made it."
    training: StageWork
    "The training step."

    def size_of(self, name: str) -> Size:
        """The size of a stage's result."""
        return next(stage.size for stage in self.stages if stage.name == name)


class RehearsedEpochs(SampledEpochs):
    """The epoch source of a rehearsal: an epoch has some of its batches, each stage by itself or all stages together."""

    def __init__(
        self,
        predictor: Predictor,
        prepared: PreparedGraph,
        config: TrainConfig,
        *,
        kept: KeptTiers | None = None,
    ) -> None:
        super().__init__(predictor, prepared, config, kept=kept)
        self._deadline_s = 0.0
        self._measured: list[Measured] = []
        self._num_together = 0

    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        """The steps of the batches that are rehearsed in an epoch."""
        return self._together(epoch) if self._num_together else self._alone(epoch)

    def _alone(self, epoch: int) -> Generator[TrainStep, None, None]:
        """Steps of batches that are made one at a time and measured; none after the time is up."""
        with closing(rehearsed(self._minibatches, epoch, self._numbers())) as batches:
            for made in batches:
                watch = Stopwatch()
                yield self.step(made.batch)
                if self._predictor.device.type == "cuda":
                    torch.cuda.synchronize(self._predictor.device)
                training = watch.work()
                self._measured.append(Measured(number=made.number, stages=made.stages, training=training))
                if self._is_enough():
                    return

    def _together(self, epoch: int) -> Generator[TrainStep, None, None]:
        """Steps of the last batches of an epoch, which go through the pipeline as in training."""
        with self._minibatches.batches(epoch, first=len(self._minibatches) - self._num_together) as batches:
            for batch in batches:
                yield self.step(batch)

    def try_out(self) -> None:
        """Make the lazy parameters of the model."""
        with closing(rehearsed(self._minibatches, 0, [0])) as batches, torch.no_grad():
            self._predictor.forward_batch(next(batches).batch)

    def forecast(self, session: TrainSession) -> SampledForecast:
        """Rehearse, and foretell an epoch.

        Args:
            session: trains on this source, with a model of its own.
        """
        # No epoch is evaluated, and no learning rate changes.
        session.config = replace(session.config, epochs=_NEVER, eval_every=_NEVER)
        session.scheduler = None
        # The first batches compile kernels.
        session.run_epoch()
        self._measured.clear()
        self._deadline_s = time.perf_counter() + _ALONE_SHARE * LONGEST_S
        while not self._is_enough():
            session.run_epoch()
        watch = Stopwatch()
        self._minibatches.stages(session.epoch)
        epoch = epoch_of(self._measured, self._minibatches, begin_s=watch.work().seconds)
        slowdown, traffic = self._rehearse_together(session, epoch)
        epoch = replace(epoch, slowdown=slowdown)
        return forecast_of(epoch, self._measured, self._minibatches, traffic=traffic)

    def _rehearse_together(self, session: TrainSession, epoch: PipelinedEpoch) -> tuple[float, Traffic | None]:
        """Let batches go through the pipeline: their seconds over the simulated ones, and what the tiers gave to the last of them."""
        batch_s = simulate_epoch(epoch, num_cores()).seconds / epoch.num_batches
        longest_s = (1 - _ALONE_SHARE) * LONGEST_S
        wanted = min(MOST_BATCHES, max(FEWEST_BATCHES, int(longest_s / batch_s)))
        self._num_together = min(wanted, epoch.num_batches)
        expected_s = simulate_epoch(replace(epoch, num_batches=self._num_together), num_cores()).seconds
        end_s, measured_s = time.perf_counter() + longest_s, list[float]()
        store: object = self._minibatches.graph.features
        traffic = None
        while not measured_s or (len(measured_s) < _ROUNDS and time.perf_counter() < end_s):
            before = store.traffic() if isinstance(store, HasTraffic) else None
            session.run_epoch()
            measured_s.append(session.history[-1].epoch_s)
            if before is not None and isinstance(store, HasTraffic):
                traffic = store.traffic() - before
        return median(measured_s) / expected_s, traffic

    def _is_enough(self) -> bool:
        """Whether enough batches are measured, or the time is up."""
        count = len(self._measured)
        return count >= MOST_BATCHES or (count >= FEWEST_BATCHES and time.perf_counter() > self._deadline_s)

    def _numbers(self) -> Sequence[int]:
        """Numbers of the batches that are rehearsed: the last one first, which may be smaller, then others over the epoch."""
        last = len(self._minibatches) - 1
        return [last, *range(0, last, -(-len(self._minibatches) // MOST_BATCHES))]


def epoch_of(measured: Sequence[Measured], minibatches: MiniBatches, *, begin_s: float) -> PipelinedEpoch:
    """The epoch of the stages whose work was measured."""
    whole, last = _whole_and_last(measured, minibatches)
    # Stages that have as many threads as TrainConfig.sampling_threads says.
    threaded = ("sample",) if minibatches.announces else ("sample", "load")
    made = [
        PipelineStage(
            name=stage.name,
            threads=stage.threads,
            is_threaded=stage.name in threaded,
            work=_typical([each.stages[at].work for each in whole]),
            last=_typical([each.stages[at].work for each in last]),
        )
        for at, stage in enumerate(measured[0].stages)
    ]
    training = PipelineStage(
        name=TRAINING,
        work=_typical([each.training for each in whole]),
        last=_typical([each.training for each in last]),
    )
    return PipelinedEpoch(
        stages=(*made, training),
        num_batches=len(minibatches),
        ahead=minibatches.ahead,
        window=minibatches.window,
        begin_s=begin_s,
    )


def forecast_of(
    epoch: PipelinedEpoch,
    measured: Sequence[Measured],
    minibatches: MiniBatches,
    *,
    traffic: Traffic | None = None,
) -> SampledForecast:
    """Foretell an epoch from what was measured of some of its batches, the last one among them.

    Args:
        epoch: the stages, as of :func:`epoch_of`.
        measured: what was measured.
        minibatches: what was rehearsed.
        traffic: what the tiers of a tiered store have given to batches in the order of an epoch.
    """
    whole, last = _whole_and_last(measured, minibatches)

    def in_epoch(count: Callable[[Measured], int]) -> int:
        """A number of a whole epoch, from that of each measured batch."""
        return round((epoch.num_batches - 1) * fmean(map(count, whole)) + fmean(map(count, last)))

    rows = in_epoch(lambda each: each.size_of("load").rows)
    num_bytes = in_epoch(lambda each: each.size_of("load").num_bytes)
    simulated = simulate_epoch(epoch, num_cores())
    return SampledForecast(
        simulated=simulated,
        num_rehearsed=len(measured),
        num_seeds=len(minibatches.seeds),
        batch_size=minibatches.batch_size,
        fanouts=minibatches.neighbor_sampler.fanouts,
        num_edges=in_epoch(lambda each: each.size_of("sample").rows),
        tiers=_tiers(minibatches.graph.features, rows, num_bytes, traffic),
        batch_bytes=max(sum(stage.size.num_bytes for stage in each.stages) for each in measured),
        sampled_bytes=max(each.size_of("sample").num_bytes for each in measured),
        changes=_changes(simulated, minibatches),
    )


def _whole_and_last(
    measured: Sequence[Measured], minibatches: MiniBatches
) -> tuple[Sequence[Measured], Sequence[Measured]]:
    """The batches that are like all but the last one, and those that are like the last one, which may be smaller."""
    last = len(minibatches) - 1
    if not last or len(minibatches.seeds) % minibatches.batch_size == 0:
        return measured, measured
    return [each for each in measured if each.number < last], [each for each in measured if each.number == last]


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


def _typical(works: Sequence[StageWork]) -> StageWork:
    """The work of a batch among like ones: the mean without an eighth at either end, which other programs or a compilation may have made."""
    cut = len(works) // 8
    middle = sorted(works, key=lambda work: work.seconds)[cut : len(works) - cut]
    seconds = sum(each.seconds for each in middle)
    core_s = sum(each.seconds * each.cores for each in middle)
    return StageWork(seconds=seconds / len(middle), cores=core_s / seconds)


def _changes(simulated: SimulatedEpoch, minibatches: MiniBatches) -> tuple[Change, ...]:
    """What more threads, and more batches ahead, would give."""
    threads, ahead = minibatches.threads, simulated.epoch.ahead
    if ahead:
        tried = [(_TIMES * threads, ahead), (threads, _TIMES * ahead)]
    else:
        useful = useful_ahead(minibatches.graph, minibatches.device)
        tried = [(threads, useful)] if useful else []
    return tuple(
        Change(
            threads=threads,
            ahead=ahead,
            seconds=simulate_epoch(
                with_options(simulated.epoch, threads=threads, ahead=ahead), simulated.num_cores
            ).seconds,
        )
        for threads, ahead in tried
    )

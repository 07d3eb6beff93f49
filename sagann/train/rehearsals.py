"""Rehearsals: measure some mini-batches of a run, with a copy of its model, to foretell an epoch, or to let the run begin with the best shares."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from sagann.errors import InputError, listed
from sagann.hybrid.assignment import HOST, Threads, split_evenly
from sagann.hybrid.balance import balanced
from sagann.hybrid.forecast import Prediction, accelerator_names
from sagann.hybrid.manager import WARM_UP
from sagann.runtime.loading.pipeline import StageCounters
from sagann.runtime.processor import num_cores
from sagann.runtime.tiered.counters import TierCounts, Traffic
from sagann.storage.mapped import mapped_rows
from sagann.train.batch_epochs import SampledEpochs
from sagann.train.epoch_source import EpochSource
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.predictor import Predictor
from sagann.train.resources import reproducible, seeded

if TYPE_CHECKING:
    from sagann.train.trainer import Trainer

_FEWEST_BATCHES, _MOST_BATCHES = 3, 24
"Batches of a round, or all of an epoch: the fewest, however long they take, and the most."
LONGEST_S, SHORT_S = 10.0, 2.0
"Seconds after which no more batches are trained; and before a run, where shares need less accuracy than a forecast."
_ROUNDS, _SETTLING_ROUNDS = 5, 40
"Most rounds, and most of those in which trainers share out seeds and threads."


def foretell(trainer: Trainer) -> SampledForecast:
    """See :meth:`sagann.train.Trainer.foretell`."""
    are_links = trainer.predictor.contract.unit == "link"
    if trainer.config.sample is None or are_links:
        raise InputError(
            "only epochs of vertex mini-batches can be estimated: "
            f"{'links are learned' if are_links else 'sample is None'} (in Trainer.foretell)",
            hint="Set TrainConfig.sample. `sagann plan --memory` estimates epochs of the whole graph.",
        )
    if trainer.team.size > 1:
        # Each would measure as many batches as its own clock has room for.
        raise InputError(
            f"only epochs of a single process can be estimated: {trainer.team.size} workers train (in Trainer.foretell)",
            hint="Call it in a single process, without workers.",
        )
    with _copied(trainer) as predictor:
        source = SampledEpochs(predictor, trainer.prepared, trainer.config)
        return _forecast(source, _rehearsed(trainer, predictor, source, LONGEST_S, _ROUNDS))


def foretell_trainers(trainer: Trainer) -> tuple[Prediction, Prediction | None]:
    """Foretell an epoch of the trainers of ``config.devices``, with the shares that they settle on in some ten seconds; and with one accelerator more.

    A copy of the model is trained.
    """
    with _rehearsed_trainers(trainer, LONGEST_S) as (source, found):
        return found, with_one_more(source, found)


@contextmanager
def _rehearsed_trainers(
    trainer: Trainer, longest_s: float, like: HybridEpochs | None = None
) -> Iterator[tuple[HybridEpochs, Prediction]]:
    """Trainers, and the epoch that they are expected to train with the shares that they settle on in ``longest_s`` seconds."""
    # Whatever the run does, its best shares are searched.
    config = replace(trainer.config, sharing="joint", profile=False)
    with _copied(trainer) as predictor:
        source = HybridEpochs(predictor, trainer.prepared, config, model_config=trainer.model_config, like=like)
        with closing(source):
            rounds = _rehearsed(trainer, predictor, source, longest_s, _SETTLING_ROUNDS, warm_up=WARM_UP + 1)
            yield source, _prediction(source, rounds)


def begin_as_foretold(trainer: Trainer, source: EpochSource, say: Callable[[str], None]) -> None:
    """Let a run begin with the seeds and threads that its trainers settle on in a rehearsal.

    A run that goes on with the shares of its checkpoint keeps them, and one with fewer seeds in a mini-batch than trainers has no choice.

    References:
        Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-A (the performance model initialises the task mapping).
    """
    if not isinstance(source, HybridEpochs):
        # One device trains alone.
        return
    total, devices = source.manager.assignment.total, source.devices
    if source.has_shares or total <= len(devices.names):
        return
    since_s = time.perf_counter()
    say(f"Measuring {listed((HOST,) * devices.uses_host + devices.names)} to choose their initial shares ...")
    # The run and its rehearsal have one hot tier.
    with _rehearsed_trainers(trainer, SHORT_S, source) as (_, found):
        source.manager.start_from(found.assignment)
    shares = listed([f"{name} gets {count}" for name, count in found.assignment.seeds.items() if count])
    say(
        f"Of {total} seeds, {shares}: estimated {1000 * found.iteration_s:.3g} ms per iteration. "
        f"Measuring took {time.perf_counter() - since_s:.1f} s."
    )


@contextmanager
def _copied(trainer: Trainer) -> Iterator[Predictor]:
    """A copy of the model to rehearse with inside the ``with`` block, which leaves random numbers as they were."""
    config = trainer.config
    with seeded(config.seed, trainer.device), reproducible(config.deterministic, trainer.device):
        yield trainer.predictor.copied()


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledForecast:
    """An epoch of mini-batches as it is expected to run."""

    seconds: float
    num_batches: int
    num_rehearsed: int
    "Number of batches that were measured."
    num_seeds: int
    "Number of training vertices of an epoch."
    batch_size: int
    fanouts: tuple[int, ...]
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


class _Round(NamedTuple):
    """Batches that went through the pipeline and were trained: numbers, seconds, and what the tiers of a store gave."""

    counters: tuple[StageCounters, ...]
    num_batches: int
    num_edges: int
    first_s: float
    "Seconds until the first step ended."
    seconds: float
    train_s: float
    "Seconds of the training steps."
    core_s: float
    "Seconds that all cores together were busy."
    traffic: Traffic | None

    def epoch_s(self, source: SampledEpochs) -> float:
        """Seconds of a whole epoch, whose last batch may be a part of one."""
        batches = source.minibatches
        if self.num_batches == len(batches):
            return self.seconds
        after_first = len(batches.seeds) / batches.batch_size - 1
        return self.first_s + after_first * (self.seconds - self.first_s) / (self.num_batches - 1)


def _rehearsed(
    trainer: Trainer, predictor: Predictor, source: SampledEpochs, longest_s: float, most: int, warm_up: int = 1
) -> list[_Round]:
    """Train the first batches of some epochs, and measure them; those of the first ``warm_up`` epochs are not measured: they compile kernels."""
    source.try_out()
    source.open()
    session, rounds, deadline_s = trainer.session_of(predictor, source), list[_Round](), 0.0
    for epoch in itertools.count(1):
        if epoch == warm_up + 1:
            deadline_s = time.perf_counter() + longest_s
        ends_s, num_edges, num_batches = list[float](), 0, len(source.minibatches)
        since_s, core_since_s = time.perf_counter(), time.process_time()
        session.model.train()
        with closing(session.results(epoch, 0)) as results:
            for _, _, walked in results:
                num_edges += walked
                ends_s.append(time.perf_counter() - since_s)
                is_late = len(ends_s) >= _FEWEST_BATCHES and time.perf_counter() > deadline_s
                if len(ends_s) < num_batches and (is_late or len(ends_s) == _MOST_BATCHES):
                    break
        core_s, count, train_s = time.process_time() - core_since_s, len(ends_s), source.counters[-1].busy_s
        if count < num_batches:
            # The pipeline has not seen the end of the last step.
            train_s *= count / (count - 1)
        seconds = ends_s[0], ends_s[-1], train_s, core_s
        if epoch > warm_up:
            rounds.append(_Round(source.counters, count, num_edges, *seconds, source.traffic))
        if rounds and (len(rounds) >= most or time.perf_counter() >= deadline_s):
            break
    return rounds


def _forecast(source: SampledEpochs, rounds: list[_Round]) -> SampledForecast:
    """The forecast of an epoch from rounds of its batches, and from what the tiers of a store gave to the last of them."""
    batches = source.minibatches
    num_batches, num_seeds = len(batches), len(batches.seeds)
    stages, _ = batches.stages(1)
    counters = [each.counters for each in rounds]
    busy = {
        stage.name: median(
            each.counters[at].busy_s / each.seconds / (min(stage.threads, num_batches) if batches.ahead else 1)
            for each in rounds
        )
        for at, stage in enumerate(stages)
    }
    busy["train"] = median(each.train_s / each.seconds for each in rounds)
    names = [stage.name for stage in stages]
    sampled, loaded = names.index("sample"), names.index("load")

    def in_epoch(at: int, count: str) -> int:
        """Rows or bytes of an epoch from those of the seeds that a stage has worked on."""
        made_from = sum(min(each[at].items * batches.batch_size, num_seeds) for each in counters)
        return round(num_seeds * sum(getattr(each[at], count) for each in counters) / made_from)

    most_bytes = [max(each[at].most_bytes for each in counters) for at in range(len(stages))]
    on_their_way = min(batches.ahead + 1, num_batches)
    given = TierCounts(rows=in_epoch(loaded, "rows"), num_bytes=in_epoch(loaded, "num_bytes"))
    features, traffic = batches.graph.features, rounds[-1].traffic
    if traffic is not None and traffic.rows:
        hit_rate = traffic.hit_rate
        hot = TierCounts(rows=round(given.rows * hit_rate), num_bytes=round(given.num_bytes * hit_rate))
        tiers = {"hot": hot, "cold": given - hot}
    elif isinstance(features, Tensor | None):
        tiers = {"memory" if features is None or mapped_rows(features) is None else "file": given}
    else:
        tiers = {type(features).__name__: given}
    return SampledForecast(
        seconds=median(each.epoch_s(source) for each in rounds),
        num_batches=num_batches,
        num_rehearsed=sum(each.num_batches for each in rounds),
        num_seeds=num_seeds,
        batch_size=batches.batch_size,
        fanouts=batches.neighbor_sampler.fanouts,
        num_edges=in_epoch(sampled, "rows"),
        tiers=tiers,
        ahead=batches.ahead,
        ahead_bytes=on_their_way * sum(most_bytes)
        + min(batches.window, num_batches - on_their_way) * most_bytes[sampled],
        busy=busy,
        busy_cores=median(each.core_s / each.seconds / num_cores() for each in rounds),
    )


def _prediction(source: HybridEpochs, rounds: list[_Round]) -> Prediction:
    """The forecast of an epoch of several trainers, from rounds in which they shared out seeds and threads."""
    manager, settled = source.manager, rounds[len(rounds) // 2 :]
    assert manager.rates is not None
    num_batches, assignment = len(source.minibatches), manager.assignment
    iteration_s = median(
        (each.seconds - each.first_s) / (each.num_batches - 1) if each.num_batches > 1 else each.seconds
        for each in settled
    )
    # An iteration at which a round was left is not counted.
    share = assignment.total / sum(manager.work.seeds.values())
    copied_s = {name: seconds * share for name, seconds in manager.work.transfer_s.items() if seconds}
    return Prediction(
        assignment=assignment,
        times=replace(manager.rates.times(assignment), transfer=copied_s),
        iteration_s=iteration_s,
        epoch_s=median(each.epoch_s(source) for each in settled),
        num_iterations=num_batches,
        edges_per_s=sum(each.num_edges for each in settled) / sum(each.seconds for each in settled),
        peak_bytes=min(source.ahead + 1, num_batches) * max(each.counters[1].most_bytes for each in rounds),
    )


def with_one_more(source: HybridEpochs, found: Prediction) -> Prediction | None:
    """The same with one more accelerator process as fast as the last one, on cores of the processor; None where there can be none."""
    devices, cores = source.devices, source.devices.accelerator_cores
    names, left = accelerator_names(len(cores) + 1), devices.threads() - cores[-1] if cores else 0
    if left < 1 or found.assignment.total <= len(devices.names) + 1:
        return None
    rates = source.manager.rates
    assert rates is not None
    if names[-2] not in rates.fits:
        return None
    sample, load, train = split_evenly(max(3, left), 3)
    threads, seeds = Threads(sample=sample, load=load, train=train), {**found.assignment.seeds, names[-1]: 0}
    wider = replace(found.assignment, seeds=seeds, threads=threads)
    rates = replace(rates, fits={**rates.fits, names[-1]: rates.fits[names[-2]]})
    assignment = balanced(wider, rates, uses_host=HOST in source.manager.work.names)
    times = rates.times(assignment)
    longer = times.slowest / found.times.slowest
    return replace(
        found,
        assignment=assignment,
        times=times,
        iteration_s=found.iteration_s * longer,
        epoch_s=found.epoch_s * longer,
        edges_per_s=found.edges_per_s / longer,
    )

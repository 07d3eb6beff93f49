"""Rehearsals: measure some mini-batches of a run, with a copy of its model, to foretell an epoch, or to let the run begin with the best shares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sagann.errors import InputError, listed
from sagann.hybrid.assignment import HOST
from sagann.hybrid.forecast import Prediction
from sagann.hybrid.manager import WARM_UP
from sagann.runtime.loading import MiniBatches
from sagann.train.epoch_source import EpochSource
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.predictor import Predictor
from sagann.train.resources import reproducible, seeded
from sagann.train.sampled_epochs import SampledEpochs
from sagann.train.sampled_forecast import (
    LONGEST_S,
    ROUNDS,
    SETTLING_ROUNDS,
    SampledForecast,
    forecast_of,
    prediction_of,
    rehearsed,
    with_one_more,
)
from sagann.train.session import TrainSession
from sagann.train.trainable import copy_of_model

if TYPE_CHECKING:
    from sagann.train.trainer import Trainer

SessionOf = Callable[[Predictor, EpochSource], TrainSession]
"Makes the session that trains the model of a predictor on the steps of a source."
SHORT_S = 2.0
"Seconds after which a rehearsal before a run begins no more rounds: shares need less accuracy than a forecast."


def foretell(trainer: Trainer, session_of: SessionOf) -> SampledForecast:
    """See :meth:`sagann.train.Trainer.foretell`."""
    are_links = trainer.predictor.contract.unit == "link"
    if trainer.config.sample is None or are_links:
        raise InputError(
            "only epochs of mini-batches of vertices are foretold: "
            f"{'links are learned' if are_links else 'sample is None'} (in Trainer.foretell)",
            hint="Set TrainConfig.sample. `sagann plan --memory` foretells epochs of the whole graph.",
        )
    with _copied(trainer) as predictor:
        source = SampledEpochs(predictor, trainer.prepared, trainer.config)
        source.try_out()
        session = session_of(predictor, source)
        return forecast_of(source, rehearsed(session, source, longest_s=LONGEST_S, most_rounds=ROUNDS))


def foretell_trainers(trainer: Trainer, session_of: SessionOf) -> tuple[Prediction, Prediction | None]:
    """See :meth:`sagann.train.Trainer.foretell_trainers`."""
    config = trainer.config
    if config.sample is None or config.devices is None:
        raise InputError(
            f"only trainers that share mini-batches are foretold: sample is {config.sample}, devices is "
            f"{config.devices} (in Trainer.foretell_trainers)",
            hint="Set TrainConfig.sample and TrainConfig.devices.",
        )
    with _rehearsed_trainers(trainer, session_of, LONGEST_S) as (source, found):
        return found, with_one_more(source, found)


@contextmanager
def _rehearsed_trainers(
    trainer: Trainer, session_of: SessionOf, longest_s: float, minibatches: MiniBatches | None = None
) -> Iterator[tuple[HybridEpochs, Prediction]]:
    """Trainers, and the epoch that they are expected to train with the shares that they settle on. After ``longest_s`` seconds no more
    batches are trained."""
    # Whatever the run does, its best shares are searched.
    config = replace(trainer.config, sharing="joint", profile=False)
    with _copied(trainer) as predictor:
        source = HybridEpochs(
            predictor, trainer.prepared, config, model_config=trainer.model_config, minibatches=minibatches
        )
        source.try_out()
        with closing(source):
            source.open()
            session = session_of(predictor, source)
            rounds = rehearsed(
                session, source, longest_s=longest_s, most_rounds=SETTLING_ROUNDS, warm_up=WARM_UP + 1
            )
            yield source, prediction_of(source, rounds)


def begin_as_foretold(
    trainer: Trainer, source: EpochSource, session_of: SessionOf, say: Callable[[str], None]
) -> None:
    """Let a run begin with the seeds and threads that its trainers settle on in a rehearsal.

    A run that goes on with the shares of its checkpoint keeps them, and one with fewer seeds in a mini-batch than trainers has no choice.

    References:
        Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-A (the performance model initialises the task mapping).
    """
    assert isinstance(source, HybridEpochs)
    total, devices = source.manager.assignment.total, source.devices
    if source.has_shares or total <= len(devices.names):
        return
    since_s = time.perf_counter()
    say(f"Rehearsing {listed((HOST,) * devices.uses_host + devices.names)}, to begin with the best shares ...")
    # The run and its rehearsal have one hot tier.
    with _rehearsed_trainers(trainer, session_of, SHORT_S, source.minibatches) as (_, found):
        source.manager.start_from(found.assignment)
    shares = listed([f"{name} gets {count}" for name, count in found.assignment.seeds.items() if count])
    say(
        f"Of {total} seeds, {shares}: an iteration is expected at {1000 * found.iteration_s:.3g} ms. "
        f"The rehearsal took {time.perf_counter() - since_s:.1f} s."
    )


@contextmanager
def _copied(trainer: Trainer) -> Iterator[Predictor]:
    """A copy of the model to rehearse with inside the ``with`` block, which leaves random numbers as they were."""
    with ExitStack() as stack:
        stack.enter_context(seeded(trainer.config.seed, trainer.device))
        stack.enter_context(reproducible(trainer.config.deterministic, trainer.device))
        known = trainer.predictor
        yield Predictor(copy_of_model(trainer.model), known.contract, device=trainer.device, loss=known.mean_loss)

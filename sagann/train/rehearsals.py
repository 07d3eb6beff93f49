"""Rehearsals: measure some mini-batches of a run, with a copy of its model, to foretell an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from sagann.errors import InputError
from sagann.plan.hybrid.rehearsed import RehearsedJob
from sagann.storage.whole_files import whole_files
from sagann.train.predictor import Predictor
from sagann.train.rehearsed_trainers import RehearsedTrainers
from sagann.train.resources import reproducible, seeded
from sagann.train.run_parts import RunParts
from sagann.train.sampled_forecast import RehearsedEpochs, SampledForecast
from sagann.train.trainable import copy_of_model


def foretell(parts: RunParts) -> SampledForecast:
    """See :meth:`sagann.train.Trainer.foretell`."""
    if parts.config.sample is None or parts.learns_links:
        raise InputError(
            "only epochs of mini-batches of vertices are foretold",
            value="links are learned" if parts.learns_links else "sample is None",
            where="Trainer.foretell",
            fix="Set TrainConfig.sample. `sagann plan --memory` foretells epochs of the whole graph.",
        )
    with _copied(parts) as predictor:
        source = RehearsedEpochs(predictor, parts.prepared, parts.config)
        source.try_out()
        return source.forecast(parts.session_of(predictor, source))


def rehearse_trainers(parts: RunParts) -> RehearsedJob:
    """See :meth:`sagann.train.Trainer.rehearse_trainers`."""
    config = parts.config
    if config.sample is None or config.devices is None:
        raise InputError(
            "only trainers that share mini-batches are rehearsed",
            value=f"sample is {config.sample}, devices is {config.devices}",
            where="Trainer.rehearse_trainers",
            fix="Set TrainConfig.sample and TrainConfig.devices.",
        )
    with _copied(parts) as predictor:
        source = RehearsedTrainers(predictor, parts.prepared, config, model_config=parts.model_config)
        source.try_out()
        with closing(source):
            return source.rehearse(parts.session_of(predictor, source).optimizer)


@contextmanager
def _copied(parts: RunParts) -> Iterator[Predictor]:
    """A copy of the model to rehearse with inside the ``with`` block, which leaves random numbers as they were."""
    with ExitStack() as stack:
        stack.enter_context(seeded(parts.config.seed, parts.device))
        stack.enter_context(reproducible(parts.config.deterministic, parts.device))
        stack.enter_context(whole_files(parts.prepared.graph))
        known = parts.predictor
        yield Predictor(copy_of_model(parts.model), known.contract, device=parts.device, loss=known.mean_loss)

"""Rehearsals: measure some mini-batches of a run, with a copy of its model, to foretell an epoch, or to let the run begin with the best shares."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from sagann.errors import InputError, listed
from sagann.plan.hybrid.assignment import HOST
from sagann.plan.hybrid.predict import best_split, machine_here
from sagann.plan.hybrid.rehearsed import RehearsedJob
from sagann.train.epoch_source import EpochSource
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.predictor import Predictor
from sagann.train.rehearsed_trainers import RehearsedTrainers
from sagann.train.resources import reproducible, seeded
from sagann.train.run_parts import RunParts
from sagann.train.sampled_forecast import RehearsedEpochs, SampledForecast
from sagann.train.trainable import copy_of_model

SHORT_S = 2.0
"Seconds after which a rehearsal before a run begins no more rounds: shares need less accuracy than a forecast."


def foretell(parts: RunParts) -> SampledForecast:
    """See :meth:`sagann.train.Trainer.foretell`."""
    if parts.config.sample is None or parts.learns_links:
        raise InputError(
            "only epochs of mini-batches of vertices are foretold: "
            f"{'links are learned' if parts.learns_links else 'sample is None'} (in Trainer.foretell)",
            hint="Set TrainConfig.sample. `sagann plan --memory` foretells epochs of the whole graph.",
        )
    with _copied(parts) as predictor:
        source = RehearsedEpochs(predictor, parts.prepared, parts.config)
        source.try_out()
        return source.forecast(parts.session_of(predictor, source))


def rehearse_trainers(parts: RunParts, *, longest_s: float | None = None) -> RehearsedJob:
    """See :meth:`sagann.train.Trainer.rehearse_trainers`; ``longest_s`` as for :meth:`RehearsedTrainers.rehearse`."""
    config = parts.config
    if config.sample is None or config.devices is None:
        raise InputError(
            f"only trainers that share mini-batches are rehearsed: sample is {config.sample}, devices is "
            f"{config.devices} (in Trainer.rehearse_trainers)",
            hint="Set TrainConfig.sample and TrainConfig.devices.",
        )
    with _copied(parts) as predictor:
        source = RehearsedTrainers(predictor, parts.prepared, config, model_config=parts.model_config)
        source.try_out()
        with closing(source):
            return source.rehearse(parts.session_of(predictor, source).optimizer, longest_s=longest_s)


def begin_as_foretold(parts: RunParts, source: EpochSource) -> None:
    """Let a run begin with the seeds and threads for which its trainers are expected to end an iteration soonest.

    A run that goes on with the shares of its checkpoint keeps them, and one with fewer seeds in a mini-batch than trainers has no choice.

    References:
        Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-A (the performance model initialises the task mapping).
    """
    assert isinstance(source, HybridEpochs)
    total, devices = source.manager.assignment.total, source.devices
    if source.has_shares or total <= len(devices.names):
        return
    since_s = time.perf_counter()
    parts.say(
        f"Rehearsing {listed((HOST,) * devices.uses_host + devices.names)}, to begin with the best shares ..."
    )
    job = rehearse_trainers(parts, longest_s=SHORT_S)
    machine = machine_here("this machine", devices.threads(), devices.names)
    found = best_split(machine, job, total=total, accelerators=devices.names, uses_host=devices.uses_host)
    source.manager.start_from(found.assignment)
    shares = listed([f"{name} gets {count}" for name, count in found.assignment.seeds.items() if count])
    parts.say(
        f"Of {total} seeds, {shares}: an iteration is expected at {1000 * found.iteration_s:.3g} ms. "
        f"The rehearsal took {time.perf_counter() - since_s:.1f} s."
    )


@contextmanager
def _copied(parts: RunParts) -> Iterator[Predictor]:
    """A copy of the model to rehearse with inside the ``with`` block, which leaves random numbers as they were."""
    with ExitStack() as stack:
        stack.enter_context(seeded(parts.config.seed, parts.device))
        stack.enter_context(reproducible(parts.config.deterministic, parts.device))
        known = parts.predictor
        yield Predictor(copy_of_model(parts.model), known.contract, device=parts.device, loss=known.mean_loss)

"""Description of a run: what its folder, its progress and its ``repr`` say of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sagann.byte_size import format_bytes
from sagann.nn.model_call import class_of
from sagann.train.history import History
from sagann.train.identity import identity_of
from sagann.train.metrics import Metrics
from sagann.train.reporter import RunInfo, TrainResult
from sagann.train.resources import peak_rss_bytes, versions
from sagann.train.run import Run
from sagann.train.session import TrainSession

if TYPE_CHECKING:
    from sagann.train.trainer import Trainer


def run_of(trainer: Trainer, session: TrainSession, path: Path) -> Run:
    """The run that a trainer starts in a folder."""
    streaming = trainer.predictor.streaming
    return Run(
        path=path,
        model=model_name(trainer),
        model_config=trainer.model_config,
        train_config=trainer.config,
        data=trainer.source,
        contract=trainer.predictor.contract,
        versions={**versions(), "workers": trainer.team.size},
        identity=identity_of(session, trainer.predictor, trainer.graph, trainer.model_config),
        class_names=trainer.class_names,
        loss=trainer.predictor.mean_loss,
        automatic_bytes=streaming.memory_bytes if streaming is not None and streaming.is_automatic else None,
    )


def result_of(
    session: TrainSession, metrics: Mapping[str, Metrics], *, weights: str, run_dir: Path | None
) -> TrainResult:
    """How a session ended, with the metrics of the weights that it ended with."""
    return TrainResult(
        epochs=session.epoch,
        batch=session.position.batch,
        best_epoch=session.tracker.epoch,
        weights=weights,
        stopped_early=session.tracker.exhausted and session.epoch < session.config.epochs,
        interrupted=not session.finished,
        epoch_s=statistics.median(record.epoch_s for record in session.history) if session.history else 0.0,
        peak_rss_bytes=peak_rss_bytes(),
        metrics=metrics,
        history=History(session.history),
        run_dir=run_dir,
    )


def summary_of(trainer: Trainer, result: TrainResult) -> dict[str, Any]:
    """The content of metrics.json."""
    return {
        "model": model_name(trainer),
        "data": trainer.source,
        "num_vertices": trainer.graph.num_vertices,
        "num_edges": trainer.graph.num_edges,
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "monitor": trainer.monitor,
        "weights": result.weights,
        "stopped_early": result.stopped_early,
        "epoch_s": result.epoch_s,
        "peak_rss_bytes": result.peak_rss_bytes,
        "seed": trainer.config.seed,
        "device": str(trainer.device),
        **{split: result.metrics.get(split, {}) for split in ("train", "val", "test")},
    }


def info_of(trainer: Trainer, session: TrainSession) -> RunInfo:
    """What reporters are told at the start."""
    return RunInfo(
        model=model_name(trainer),
        data=trainer.source,
        num_vertices=trainer.prepared.graph.num_vertices,
        num_edges=trainer.prepared.num_edges,
        num_hops=trainer.predictor.num_hops,
        epochs=trainer.config.epochs,
        first_epoch=session.epoch + 1,
        first_batch=session.position.batch,
        monitor=trainer.monitor,
        device=str(trainer.device),
    )


def model_name(trainer: Trainer) -> str:
    """Name of the model in the zoo, or of its class."""
    return class_of(trainer.model).__name__ if trainer.model_config is None else trainer.model_config.model


def trained_on(trainer: Trainer) -> str:
    """What an epoch is trained on, in words."""
    config, unit = trainer.config, trainer.predictor.contract.unit
    if config.sample is not None and unit == "link":
        return f"mini-batches of {config.seeds_per_batch} links with {','.join(map(str, config.sample))} neighbours"
    if config.sample is not None:
        fanouts = ",".join(map(str, config.sample))
        by = "" if config.devices is None else f", by {config.devices}"
        return f"mini-batches of {config.seeds_per_batch} with {fanouts} neighbours{by}"
    if unit == "graph":
        return f"batches of {config.graphs_per_batch} graphs"
    streaming, team = trainer.predictor.streaming, trainer.team
    in_steps = unit == "link" and config.batch_size is not None
    at_once = f", {config.batch_size} links at a time" if in_steps else ""
    within = "" if streaming is None else f", streamed within {format_bytes(streaming.memory_bytes)}"
    return f"the whole graph{at_once}{within}" + (f", by {team.size} workers" if team.size > 1 else "")

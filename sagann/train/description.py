"""Description of a run: what its folder, its progress and its ``repr`` say of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sagann.byte_size import format_bytes
from sagann.train.identity import identity_of
from sagann.train.reporter import RunInfo, TrainResult
from sagann.train.resources import versions
from sagann.train.run_folder import AUTOMATIC
from sagann.train.run_parts import RunParts
from sagann.train.session import TrainSession


def description_of(parts: RunParts, session: TrainSession) -> dict[str, Any]:
    """The content of run.json."""
    streaming = parts.predictor.streaming
    automatic_bytes = streaming.memory_bytes if streaming is not None and streaming.is_automatic else None
    return {
        "model": {
            "name": parts.model_name,
            "config": None if parts.model_config is None else asdict(parts.model_config),
        },
        "train": parts.config.to_json(),
        "data": parts.source,
        "class_names": parts.class_names,
        "seed": parts.config.seed,
        "monitor": parts.monitor,
        "weights": parts.weights,
        "contract": asdict(parts.predictor.contract),
        "loss": parts.predictor.mean_loss.to_json(),
        "versions": {**versions(), "workers": parts.team.size},
        "identity": identity_of(session, parts.predictor, parts.graph, parts.model_config),
        AUTOMATIC: automatic_bytes,
    }


def summary_of(parts: RunParts, result: TrainResult) -> dict[str, Any]:
    """The content of metrics.json."""
    return {
        "model": parts.model_name,
        "data": parts.source,
        "num_vertices": parts.graph.num_vertices,
        "num_edges": parts.graph.num_edges,
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "monitor": parts.monitor,
        "weights": result.weights,
        "stopped_early": result.stopped_early,
        "epoch_s": result.epoch_s,
        "peak_rss_bytes": result.peak_rss_bytes,
        "seed": parts.config.seed,
        "device": str(parts.device),
        **{split: result.metrics.get(split, {}) for split in ("train", "val", "test")},
    }


def info_of(parts: RunParts, session: TrainSession) -> RunInfo:
    """What reporters are told at the start."""
    return RunInfo(
        model=parts.model_name,
        data=parts.source,
        num_vertices=parts.prepared.graph.num_vertices,
        num_edges=parts.prepared.num_edges,
        num_hops=parts.predictor.num_hops,
        epochs=parts.config.epochs,
        first_epoch=session.epoch + 1,
        first_batch=session.position.batch,
        monitor=parts.monitor,
        device=str(parts.device),
    )


def trained_on(parts: RunParts) -> str:
    """What an epoch is trained on, in words."""
    config = parts.config
    if config.sample is not None and parts.learns_links:
        return f"mini-batches of {config.seeds_per_batch} links with {','.join(map(str, config.sample))} neighbours"
    if config.sample is not None:
        fanouts = ",".join(map(str, config.sample))
        by = "" if config.devices is None else f", by {config.devices}"
        return f"mini-batches of {config.seeds_per_batch} with {fanouts} neighbours{by}"
    if parts.predictor.contract.unit == "graph":
        return f"batches of {config.graphs_per_batch} graphs"
    streaming, team = parts.predictor.streaming, parts.team
    in_steps = parts.learns_links and config.batch_size is not None
    at_once = f", {config.batch_size} links at a time" if in_steps else ""
    within = "" if streaming is None else f", streamed within {format_bytes(streaming.memory_bytes)}"
    return f"the whole graph{at_once}{within}" + (f", by {team.size} workers" if team.size > 1 else "")

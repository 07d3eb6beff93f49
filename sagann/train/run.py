"""Run: what run.json says of a run, and of the model that it trains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sagann.byte_size import format_bytes
from sagann.config import TrainConfig
from sagann.graph import SPLIT_NAMES
from sagann.nn import ModelConfig
from sagann.nn.model_call import class_of
from sagann.storage.json_fields import as_integer, as_mapping, as_text, as_texts
from sagann.train.contract import Contract, require_names
from sagann.train.identity import identity_of
from sagann.train.losses import Loss
from sagann.train.metrics import Metrics
from sagann.train.reporter import History, RunInfo, TrainResult
from sagann.train.resources import peak_rss_bytes, versions

if TYPE_CHECKING:
    from sagann.train.session import TrainSession
    from sagann.train.trainer import Trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run folder, read."""

    path: Path
    "The run folder."
    model: str
    "Name of the model in the zoo, or of its class."
    model_config: ModelConfig | None
    """The configuration that the model was built from; None for a module of the user's own. Building a model from it executes
    the Python file that it may name."""
    train_config: TrainConfig
    "The training options."
    data: str
    "Name or path of the training data."
    contract: Contract
    "The sizes that the model expects of a graph."
    versions: Mapping[str, Any]
    "Versions of sagann, Python and PyTorch that the run was made with, and the number of threads."
    identity: Mapping[str, Any]
    "What must be the same where the run is resumed (:mod:`sagann.train.identity`)."
    class_names: tuple[str, ...]
    "Names of the classes; empty where none were given."
    loss: Loss
    "The loss that was trained. Of a function of the user's only the name is known."
    automatic_bytes: int | None
    "Memory budget that the run chose by itself, in bytes; None where the run chose none."
    metrics: Mapping[str, Any] | None = None
    "Content of metrics.json; None while the run is not finished."

    @property
    def graph(self) -> Mapping[str, Any]:
        """Sizes of the training graph, and a digest of each of its arrays (:func:`sagann.train.identity.graph_identity`)."""
        return self.identity["graph"]

    @property
    def device(self) -> str:
        """Type of the device that computed."""
        return self.identity["train"]["device"]

    def to_json(self) -> dict[str, Any]:
        """The content of run.json."""
        return {
            "model": {"name": self.model, "config": self.model_config and asdict(self.model_config)},
            "train": self.train_config.to_json(),
            "data": self.data,
            "class_names": self.class_names,
            "contract": asdict(self.contract),
            "loss": self.loss.to_json(),
            "versions": self.versions,
            "identity": self.identity,
            "automatic_memory_bytes": self.automatic_bytes,
        }

    @classmethod
    def from_json(cls, path: Path, values: Mapping[str, Any]) -> Run:
        """The inverse of :meth:`to_json`; a KeyError, TypeError or ValueError where a value is missing, or none that a run can have."""
        model, identity = as_mapping(values["model"]), as_mapping(values["identity"])
        contract, loss = Contract(**as_mapping(values["contract"])), Loss.from_json(values["loss"])
        loss.require_fit(contract.kind, contract.num_classes)
        # What is read of the identity.
        as_mapping(identity["graph"])
        as_text(as_mapping(identity["train"])["device"])
        config, budget = model["config"], values["automatic_memory_bytes"]
        return cls(
            path=path,
            model=as_text(model["name"]),
            model_config=None if config is None else ModelConfig(**as_mapping(config)),
            train_config=TrainConfig(**as_mapping(values["train"])),
            data=as_text(values["data"]),
            contract=contract,
            versions=as_mapping(values["versions"]),
            identity=identity,
            class_names=require_names(as_texts(values["class_names"]), contract.num_classes, where="class_names"),
            loss=loss,
            automatic_bytes=None if budget is None else as_integer(budget, "bytes", of="automatic_memory_bytes"),
        )


def run_of(trainer: Trainer, session: TrainSession, path: Path) -> Run:
    """The run that a trainer starts in a folder."""
    predictor, config = trainer.predictor, trainer.model_config
    streaming = predictor.streaming
    return Run(
        path=path,
        model=model_name(trainer),
        model_config=config,
        train_config=trainer.config,
        data=trainer.source,
        contract=predictor.contract,
        versions={**versions(), "workers": trainer.team.size},
        identity=identity_of(session, predictor, trainer.graph, config),
        class_names=trainer.class_names,
        loss=predictor.mean_loss,
        automatic_bytes=streaming.memory_bytes if streaming is not None and streaming.is_automatic else None,
    )


def result_of(
    session: TrainSession, metrics: Mapping[str, Metrics], *, weights: str, run_dir: Path | None
) -> TrainResult:
    """How a session ended, with the metrics of the weights that it ended with."""
    history = History(session.history)
    return TrainResult(
        epochs=session.epoch,
        batch=session.position.batch,
        best_epoch=session.tracker.epoch,
        weights=weights,
        stopped_early=session.tracker.exhausted and session.epoch < session.config.epochs,
        interrupted=not session.finished,
        epoch_s=statistics.median(history["epoch_s"]) if history else 0.0,
        peak_rss_bytes=peak_rss_bytes(),
        metrics=metrics,
        history=history,
        run_dir=run_dir,
    )


def summary_of(trainer: Trainer, result: TrainResult) -> dict[str, Any]:
    """The content of metrics.json."""
    found = ("epochs", "best_epoch", "weights", "stopped_early", "epoch_s", "peak_rss_bytes")
    return {
        "model": model_name(trainer),
        "data": trainer.source,
        "num_vertices": trainer.graph.num_vertices,
        "num_edges": trainer.graph.num_edges,
        "monitor": trainer.monitor,
        "seed": trainer.config.seed,
        "device": _devices(trainer),
        **{name: getattr(result, name) for name in found},
        **{split: result.metrics.get(split, {}) for split in SPLIT_NAMES},
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
        device=_devices(trainer),
    )


def _devices(trainer: Trainer) -> str:
    """The devices that compute, as an option names them."""
    streaming = trainer.predictor.streaming
    return ",".join(map(str, (streaming and streaming.devices) or [trainer.device]))


def model_name(trainer: Trainer) -> str:
    """Name of the model in the zoo, or of its class."""
    return class_of(trainer.model).__name__ if trainer.model_config is None else trainer.model_config.model


def trained_on(trainer: Trainer) -> str:
    """What an epoch is trained on, in words."""
    config, unit, streaming = trainer.config, trainer.predictor.contract.unit, trainer.predictor.streaming
    noun = "links " if unit == "link" else ""
    if config.sample is not None:
        fanouts = ",".join(map(str, config.sample))
        by = "" if config.devices is None else f", by {config.devices}"
        return f"mini-batches of {config.seeds_per_batch} {noun}with {fanouts} neighbours{by}"
    if unit == "graph":
        return f"batches of {config.graphs_per_batch} graphs"
    parts = ["the whole graph"]
    parts += [f"{config.batch_size} {noun}at a time"] if config.batch_size is not None else []
    parts += [f"streamed within {format_bytes(streaming.memory_bytes)}"] if streaming is not None else []
    parts += [f"by {trainer.team.size} workers"] if trainer.team.size > 1 else []
    return ", ".join(parts)

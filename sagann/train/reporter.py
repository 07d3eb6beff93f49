"""Reporter: who is told how a run goes. The library itself prints nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sagann.train.metrics import Metrics

_LOG = logging.getLogger("sagann.train")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """What is known of a run when it starts."""

    model: str
    "The model's name."
    data: str
    "The data's name or path."
    num_vertices: int
    "Vertices of the graph that the layers walk."
    num_edges: int
    "Edges of the graph that the layers walk: with the self-loops that the model's ``prepare`` added."
    num_hops: int
    "Times an epoch's forward pass walks the edges."
    epochs: int
    "Epochs to train, at most."
    first_epoch: int
    "The first epoch of this call: 1, or more after a resume."
    monitor: str
    "The monitored metric, as 'val/accuracy'."
    device: str
    "Where the run computes."


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """One epoch: a line of metrics.jsonl."""

    epoch: int
    "From 1."
    loss: float
    "Training loss, in training mode (with dropout)."
    epoch_s: float
    "Seconds of forward, backward and optimizer step; evaluation and checkpoints are not counted."
    lr: float
    "Learning rate of the first parameter group in this epoch."
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    "Split to metric to value; empty where the epoch was not evaluated."

    def to_json(self) -> dict[str, Any]:
        """The line as JSON values: the metrics flattened to 'val/accuracy' and the like."""
        flat = {f"{split}/{name}": value for split, found in self.metrics.items() for name, value in found.items()}
        return {"epoch": self.epoch, "loss": self.loss, "epoch_s": self.epoch_s, "lr": self.lr, **flat}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EpochRecord:
        """The inverse of :meth:`to_json`."""
        metrics: dict[str, Metrics] = {}
        for key, value in values.items():
            split, slash, name = key.partition("/")
            if slash:
                metrics.setdefault(split, {})[name] = value
        own = {name: values[name] for name in ("epoch", "loss", "epoch_s", "lr")}
        return cls(**own, metrics=metrics)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """How a run ended."""

    epochs: int
    "Epochs trained, those before a resume included."
    best_epoch: int | None
    "The epoch whose monitored metric was best; None before the first evaluation."
    weights: str
    "'best' or 'last': which weights the model has now, and which ``metrics`` are of."
    stopped_early: bool
    "Whether patience ran out."
    interrupted: bool
    "Whether Ctrl-C stopped the run; ``metrics`` are then empty and the model has the last epoch's weights."
    epoch_s: float
    "Median seconds per epoch."
    peak_rss_bytes: int
    "Largest resident memory of the process so far."
    metrics: Mapping[str, Metrics]
    "Split to metric to value, of the weights that the run ended with."
    history: Sequence[EpochRecord]
    "Every epoch."
    run_dir: Path | None
    "The run folder, or None."


class Reporter(Protocol):
    """Is told how a run goes."""

    def on_start(self, info: RunInfo) -> None:
        """Training begins (or continues)."""

    def on_epoch(self, record: EpochRecord) -> None:
        """An epoch is done."""

    def on_end(self, result: TrainResult) -> None:
        """Training is over, by whatever cause but an error."""

    def on_message(self, text: str) -> None:
        """Something the user should know: a damaged checkpoint, a stop ahead of time."""


class LogReporter:
    """The default: messages go to the logger 'sagann.train' as warnings, everything else nowhere."""

    def on_start(self, info: RunInfo) -> None:
        """Do nothing."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Do nothing."""

    def on_end(self, result: TrainResult) -> None:
        """Do nothing."""

    def on_message(self, text: str) -> None:
        """Log ``text``."""
        _LOG.warning(text)


class Reporters:
    """Several reporters as one."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = tuple(reporters)

    def on_start(self, info: RunInfo) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.on_start(info)

    def on_epoch(self, record: EpochRecord) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.on_epoch(record)

    def on_end(self, result: TrainResult) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.on_end(result)

    def on_message(self, text: str) -> None:
        """Tell each."""
        for reporter in self._reporters:
            reporter.on_message(text)

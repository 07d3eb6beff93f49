"""Reporters: objects that are told how a run goes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sagann.storage.json_fields import as_integer, as_number
from sagann.train.epoch_progress import EpochProgress
from sagann.train.metrics import Metrics

if TYPE_CHECKING:
    from sagann.train.history import History

_NUMBERS = ("epoch", "loss", "epoch_s", "lr", "num_edges")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """A run at its start."""

    model: str
    "The model's name."
    data: str
    "The data's name or path."
    num_vertices: int
    "Number of vertices of the prepared graph."
    num_edges: int
    "Number of edges of the prepared graph: with the self-loops that the model's ``prepare`` added."
    num_hops: int
    "Number of times that a forward pass walks the edges."
    epochs: int
    "Largest number of epochs to train."
    first_epoch: int
    "Number of the first epoch of this call: 1, or more after a resume."
    first_batch: int = 0
    "Number of batches of that epoch that were trained before; more than 0 after a resume within an epoch."
    monitor: str
    "Name of the monitored metric, as 'val/accuracy'."
    device: str
    "Name of the device that computes."


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """One epoch: a line of metrics.jsonl."""

    epoch: int
    "Number of the epoch, from 1."
    loss: float
    "Loss of the training vertices, in training mode (with dropout)."
    epoch_s: float
    "Seconds of forward, backward and optimizer step; evaluation and checkpoints are not counted."
    lr: float
    "Learning rate of the first parameter group."
    num_edges: int = 0
    "Number of edges that the forward passes of training walked, of all hops together."
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    "Split to metric to value; empty where the epoch was not evaluated."
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Numbers, and lists of them, of what the epoch was trained with, by name: rows and bytes of tiers ('hot_rows'), parts and seconds of workers that
    are balanced by cost ('worker_s'), shares and seconds of several trainers ('trainer_s'); of sampled mini-batches 'mteps', million traversed
    edges per second, that is ``num_edges`` over ``epoch_s`` (HyScale-GNN, equation 5)."""

    def to_json(self) -> dict[str, Any]:
        """The line as JSON values: metrics have names such as 'val/accuracy'."""
        flat = {f"{split}/{name}": value for split, found in self.metrics.items() for name, value in found.items()}
        return {**{name: getattr(self, name) for name in _NUMBERS}, **self.extra, **flat}

    def __getitem__(self, name: str) -> Any:
        """A value of the line by its name."""
        return self.to_json()[name]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EpochRecord:
        """The inverse of :meth:`to_json`; a KeyError or TypeError where a number is missing, or no finite number."""
        metrics: dict[str, Metrics] = {}
        extra: dict[str, Any] = {}
        for key, value in values.items():
            split, slash, name = key.partition("/")
            if slash:
                metrics.setdefault(split, {})[name] = as_number(value, key)
            elif key not in _NUMBERS:
                extra[key] = value
        numbers: dict[str, Any] = {name: as_number(values[name], name) for name in ("loss", "epoch_s", "lr")}
        counts = {
            name: as_integer(values[name], of) for name, of in (("epoch", "epochs"), ("num_edges", "num_edges"))
        }
        return cls(**numbers, **counts, metrics=metrics, extra=extra)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """How a run ended."""

    epochs: int
    "Number of epochs that have ended, with the epochs before a resume."
    batch: int
    "Number of batches that were trained of the epoch after those; 0 between epochs."
    best_epoch: int | None
    "Number of the epoch whose monitored metric was best; None before the first evaluation."
    weights: str
    "Weights that the model has now and ``metrics`` are of: 'best' or 'last'."
    stopped_early: bool
    "Whether patience ran out."
    interrupted: bool
    "Whether Ctrl-C or ``Trainer.stop`` ended the run; ``metrics`` are then empty and the model has the weights of its last step."
    epoch_s: float
    "Median of the seconds of an epoch."
    peak_rss_bytes: int
    "Largest resident memory of the process so far, in bytes."
    metrics: Mapping[str, Metrics]
    "Split to metric to value, for the weights that the run ended with."
    history: History
    """The records of all epochs. By the name of a value, as ``history["loss"]``, the values of all epochs."""
    run_dir: Path | None
    "The run folder, or None."


class Reporter(Protocol):
    """Is told how a run goes. A class that inherits from Reporter overrides the methods that matter to it."""

    def on_start(self, info: RunInfo) -> None:
        """Training begins, or continues."""
        return

    def on_batch(self, progress: EpochProgress) -> None:
        """A mini-batch was trained, and others of its epoch follow. Never called for an epoch on the whole graph."""
        return

    def on_epoch(self, record: EpochRecord) -> None:
        """An epoch has ended."""
        return

    def on_end(self, result: TrainResult) -> None:
        """Training has ended without an error."""
        return

    def on_message(self, text: str) -> None:
        """A message for the user: a damaged checkpoint, a stop ahead of time."""
        return


class SilentReporter(Reporter):
    """Reports nothing: the reporter of every worker but the first one."""


class LogReporter(Reporter):
    """The default, beside a progress bar where somebody watches: messages go to the logger 'sagann.train' as warnings."""

    def on_message(self, text: str) -> None:
        logging.getLogger("sagann.train").warning(text)


class TensorBoardReporter(Reporter):
    """Writes the values of every epoch into a folder, as TensorBoard events (extra 'tensorboard')."""

    def __init__(self, path: Path, *, first_epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Earlier events of epochs that a resume runs again are hidden.
        self._writer = SummaryWriter(str(path), purge_step=first_epoch)

    def on_epoch(self, record: EpochRecord) -> None:
        for name, value in record.to_json().items():
            if name == "epoch" or value is None:
                continue
            tag = name if "/" in name else f"run/{name}"
            for number, one in enumerate(value if isinstance(value, list) else [value]):
                place = f"{tag}/{number}" if isinstance(value, list) else tag
                if isinstance(one, str):
                    self._writer.add_text(place, one, record.epoch)
                else:
                    self._writer.add_scalar(place, one, record.epoch)

    def close(self) -> None:
        """Close the events file."""
        self._writer.close()

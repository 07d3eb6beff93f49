"""Reporters: objects that are told how a run goes."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, overload

from sagann.errors import InputError, MissingDependencyError, closest, require_type, shown
from sagann.storage.json_fields import as_number
from sagann.storage.picture import new_figure, write_figure
from sagann.train.metrics import Metrics

if TYPE_CHECKING:
    from sagann.train.epoch_source import TrainStep


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
        metrics, extra = dict[str, Metrics](), dict[str, Any]()
        for key, value in values.items():
            split, slash, name = key.partition("/")
            if slash:
                metrics.setdefault(split, {})[name] = as_number(value, key)
            elif key not in _NUMBERS:
                extra[key] = value
        numbers: dict[str, Any] = {name: as_number(values[name], name) for name in _NUMBERS}
        return cls(**numbers, metrics=metrics, extra=extra)


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

    def needs_weights(self, epoch: int) -> bool:
        """Whether the model must have the weights of this epoch when :meth:`on_epoch` is called, as it always has on the processor.

        A CUDA device may else be training the next epoch already, in memory (docs/training.md). By default it waits.
        """
        return True

    def on_end(self, result: TrainResult) -> None:
        """Training has ended without an error."""
        return

    def on_message(self, text: str) -> None:
        """A message for the user: a damaged checkpoint, a stop ahead of time."""
        return


class SilentReporter(Reporter):
    """Reports nothing: the reporter of every worker but the first one."""

    def needs_weights(self, epoch: int) -> bool:
        return False


class LogReporter(SilentReporter):
    """The default, beside a progress bar where somebody watches: messages go to the logger 'sagann.train' as warnings."""

    def on_message(self, text: str) -> None:
        logging.getLogger("sagann.train").warning(text)


class TensorBoardReporter(SilentReporter):
    """Writes the values of every epoch into a folder, as TensorBoard events (extra 'tensorboard')."""

    def __init__(self, path: Path, *, first_epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Earlier events of epochs that a resume runs again are hidden.
        self._writer = SummaryWriter(str(path), purge_step=first_epoch)

    def on_epoch(self, record: EpochRecord) -> None:
        for name, value in record.to_json().items():
            if name == "epoch":
                continue
            tag = name if "/" in name else f"run/{name}"
            several = (
                [(f"{tag}/{at}", each) for at, each in enumerate(value)]
                if isinstance(value, list)
                else [(tag, value)]
            )
            for place, each in several:
                if isinstance(each, str):
                    self._writer.add_text(place, each, record.epoch)
                elif each is not None:
                    self._writer.add_scalar(place, each, record.epoch)

    def close(self) -> None:
        """Close the events file."""
        self._writer.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochProgress:
    """An epoch of which some batches are trained."""

    epoch: int
    "Number of the epoch, from 1."
    num_batches: int
    "Number of batches in the epoch; 1 for the whole graph."
    batch: int = 0
    "Number of batches that are trained."
    loss: float = 0.0
    "Mean loss of their labelled vertices, in training mode (with dropout). A loss of the user's may be negative."
    num_labelled: int = 0
    "Number of their labelled vertices: the seeds."
    num_edges: int = 0
    "Number of edges that their forward passes have walked, of all hops together."
    train_s: float = 0.0
    "Seconds of training, without checkpoints and reports; those before a resume count too."
    note: str = ""
    "What the last step says beside the numbers, as how trainers share the seeds; empty for nothing."

    @property
    def is_whole(self) -> bool:
        """Whether all batches are trained."""
        return self.batch == self.num_batches

    def after(self, step: TrainStep, *, loss: float, num_edges: int, train_s: float) -> EpochProgress:
        """The progress after one step more, with the ``loss`` and the edges of all workers in it, and all seconds so far."""
        num_labelled = self.num_labelled + step.num_labelled
        return replace(
            self,
            batch=self.batch + 1,
            loss=self.loss + (loss - self.loss) * (step.num_labelled / num_labelled),
            num_labelled=num_labelled,
            num_edges=self.num_edges + num_edges,
            train_s=train_s,
            note=step.note,
        )


_DASHES = {"val": "--", "test": ":"}
"Lines of the splits that a model is not trained on."


class History(list[EpochRecord]):
    """The epochs of a run: their records. By the name of a value in their lines of metrics.jsonl, as ``history["loss"]``, the values of all epochs.

    Metrics have names such as 'val/accuracy', and are absent where the epoch was not evaluated.

    Args:
        records: the epochs, in order. A list that grows is a history that grows.

    Example:
        >>> record = EpochRecord(epoch=1, loss=0.5, epoch_s=0.1, lr=0.01, metrics={"val": {"accuracy": 0.75}})
        >>> history = History([record])
        >>> history[-1]["val/accuracy"], history[-1].loss, history["loss"]
        (0.75, 0.5, [0.5])
        >>> history
        History(1 epoch: loss, epoch_s, lr, num_edges, val/accuracy)
    """

    @overload
    def __getitem__(self, index: SupportsIndex) -> EpochRecord: ...
    @overload
    def __getitem__(self, index: slice) -> History: ...
    @overload
    def __getitem__(self, index: str) -> list[Any]: ...
    def __getitem__(self, index: SupportsIndex | slice | str) -> EpochRecord | History | list[Any]:
        """An epoch, some of them, or the values of a name, with None for an epoch that has none.

        Raises:
            InputError: no epoch has a value of that name.
        """
        if not isinstance(index, str):
            found = super().__getitem__(index)
            return History(found) if isinstance(found, list) else found
        rows, names = self.rows(), ["epoch", *self._names()]
        if not rows or index not in names:
            raise InputError(
                f"no epoch has a value of that name: {shown(index)} (in history)",
                hint=closest(index, names) if rows else "Call fit first: no epoch has ended.",
            )
        return [row.get(index) for row in rows]

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each epoch, of the values that its line of metrics.jsonl has."""
        return [record.to_json() for record in self]

    def _names(self) -> list[str]:
        """Names of the values, in the order in which they come first; the epoch's number is not among them."""
        return [name for name in dict.fromkeys(name for row in self.rows() for name in row) if name != "epoch"]

    def __repr__(self) -> str:
        names, noun = ", ".join(self._names()), "epoch" if len(self) == 1 else "epochs"
        return f"History({len(self)} {noun}{': ' if names else ''}{names})"

    def to_pandas(self) -> Any:
        """A DataFrame of pandas with a row for each epoch and a column for each value; the index is the epoch's number.

        Raises:
            MissingDependencyError: pandas is not installed. ``history.rows()`` is the same table without it.
        """
        if find_spec("pandas") is None:
            raise MissingDependencyError("pandas", extra="pandas", feature="History.to_pandas")
        import pandas

        return pandas.DataFrame(self.rows(), columns=["epoch", *self._names()]).set_index("epoch")

    def plot(self, target: Any = None) -> Any:
        """Draw the losses over the epochs, and the other metrics on an axis of their own.

        Args:
            target: path of a PNG file to write, or Axes of matplotlib to draw into. None makes a new figure, which a notebook shows.
        Returns:
            the figure of matplotlib.
        Raises:
            InputError: there is no epoch yet, or ``target`` is something else.
            MissingDependencyError: matplotlib is not installed.
        """
        if not self:
            raise InputError(
                "there is nothing to draw: no epoch has ended (in History.plot)", hint="Call fit first."
            )
        is_axes = hasattr(target, "twinx")
        if not is_axes:
            hint = "Pass a path of a PNG file, or axes, as those of plt.subplots()."
            require_type(target, (str, os.PathLike), where="History.plot", hint=hint, optional=True)
        axes = target if is_axes else new_figure(7, 4, feature="a picture of a history").subplots()
        names = ["loss", *(name for name in self._names() if "/" in name)]
        scores = [name for name in names if not name.endswith("loss")]
        of_scores = axes.twinx() if scores else axes
        for number, name in enumerate(names):
            points = [(row["epoch"], row[name]) for row in self.rows() if name in row]
            style = {"linestyle": _DASHES.get(name.rpartition("/")[0], "-"), "color": f"C{number}", "label": name}
            # One epoch is a point, which a line does not show.
            marker = "." if len(points) == 1 else ""
            (of_scores if name in scores else axes).plot(*zip(*points, strict=True), marker=marker, **style)
        axes.set(xlabel="epoch", ylabel="loss")
        lines = [*axes.get_lines()]
        if scores:
            of_scores.set_ylabel(", ".join(dict.fromkeys(name.rpartition("/")[2] for name in scores)))
            lines += of_scores.get_lines()
        # Above the picture, because lines of two axes leave no free corner.
        axes.legend(handles=lines, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=8, frameon=False)
        if target is not None and not is_axes:
            write_figure(Path(target), axes.figure)
        return axes.figure

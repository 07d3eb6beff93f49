"""BestTracker: the best epoch by the monitored metric, its weights, and the end of patience."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from sagann.config import TrainConfig
from sagann.errors import InputError
from sagann.train.contract import Contract
from sagann.train.metrics import ERRORS, KINDS, Metrics, present_splits
from sagann.train.reporter import EpochRecord

_STATE = ("epoch", "value", "improved", "evaluated", "weights")


def resolve_monitor(config: TrainConfig, contract: Contract, splits: Mapping[str, Tensor]) -> str:
    """The metric to monitor: the configured one, or a default for the task and the splits."""
    present = present_splits(splits)
    if config.monitor is None:
        if "val" not in present:
            return "train/loss"
        return f"val/{KINDS[contract.kind].monitor}"
    split, _, metric = config.monitor.partition("/")
    if metric not in KINDS[contract.kind].metrics:
        raise InputError(
            f"the monitored metric is of another task: '{config.monitor}', the task {contract.task} has "
            f"{', '.join(KINDS[contract.kind].metrics)} (in TrainConfig.monitor)",
            hint="Monitor one of these.",
        )
    if split not in present:
        raise InputError(
            f"the monitored split is not there: '{config.monitor}', the graph has the splits "
            f"{', '.join(present) or 'none'} (in TrainConfig.monitor)",
            hint="Monitor 'train/...', or add the split to the graph.",
        )
    return config.monitor


class BestTracker:
    """Keeps the weights of the best evaluated epoch, if asked; of equally good epochs, of the last one, which is trained most.

    ``monitor`` is 'split/metric'. After ``patience`` epochs without improvement, the tracker is exhausted; None is never. An equal
    value is no improvement.
    """

    def __init__(self, monitor: str, *, keep_weights: bool, patience: int | None) -> None:
        self.monitor = monitor
        self.split, _, self.metric = monitor.partition("/")
        self.maximise = self.metric not in ERRORS
        self.keep_weights = keep_weights
        self.patience = patience
        self.epoch: int | None = None
        self.value: float | None = None
        self.weights: dict[str, Any] | None = None
        self.improved, self.evaluated = 0, 0
        "The last epoch that was better than all before, and the last one that was evaluated."

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out."""
        return self.patience is not None and self.evaluated - self.improved >= self.patience

    def monitored(self, metrics: Mapping[str, Metrics]) -> float:
        """The value of the monitored metric. An undefined metric is an InputError."""
        found = metrics.get(self.split, {})
        value = found.get(self.metric)
        if value is None:
            raise InputError(
                f"the monitored metric is undefined: '{self.monitor}' has no value; there are "
                f"{', '.join(found) or 'none'} (in TrainConfig.monitor)",
                hint="Monitor another metric; ROC-AUC needs a class with positive and negative vertices in the split, and R2 a target "
                "that varies there.",
            )
        return value

    def update(self, epoch: int, metrics: Mapping[str, Metrics], model: nn.Module) -> None:
        """Compare an evaluated epoch with the best one so far."""
        if self._is_best(epoch, self.monitored(metrics)) and self.keep_weights:
            self.weights = copy_of(model.state_dict())

    def _is_best(self, epoch: int, value: float) -> bool:
        """Compare the value of an evaluated epoch with the best one so far, which it replaces unless it is worse."""
        self.evaluated = epoch
        is_better = self.value is None or (value > self.value if self.maximise else value < self.value)
        is_best = is_better or value == self.value
        if is_better:
            self.improved = epoch
        if is_best:
            self.epoch, self.value = epoch, value
        return is_best

    def first_is_best(self, history: Sequence[EpochRecord]) -> str | None:
        """A warning where the first of several evaluated epochs is the best one, whose weights are kept; else None."""
        evaluated = [record for record in history if record.metrics]
        if self.weights is None or len(evaluated) < 2 or self.epoch != evaluated[0].epoch:
            return None
        first, last = evaluated[0], evaluated[-1]
        return (
            f"The kept weights are hardly trained: {self.monitor} was best in epoch {first.epoch} ({self.value:.4g}), the first one measured. "
            f"In epoch {last.epoch} it is {self.monitored(last.metrics):.4g}; the training loss went from {first.loss:.4g} to {last.loss:.4g}. "
            "Lower lr, monitor another metric, or keep the last weights (weights = 'last')."
        )

    def state_dict(self) -> dict[str, Any]:
        """The tracker's part of a checkpoint."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        for name in _STATE:
            setattr(self, name, state[name])


def copy_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a state_dict, which training does not change."""
    return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in state.items()}

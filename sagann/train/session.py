"""TrainSession: the state of a run that changes from batch to batch. It goes into checkpoints and comes back."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from sagann.config import TrainConfig
from sagann.errors import InputError, LayerError, first_line
from sagann.nn.model_call import class_of
from sagann.runtime.team import SOLO, Team
from sagann.train.checkpoint import Position, State
from sagann.train.contract import Contract
from sagann.train.epoch_source import EpochSource, TrainStep
from sagann.train.metrics import ERRORS, KINDS, Metrics, present_splits
from sagann.train.policies import (
    ELEMENTWISE,
    check_rates,
    continued,
    explained,
    step_scheduler,
    with_rates,
)
from sagann.train.reporter import EpochProgress, EpochRecord, Reporter
from sagann.train.resources import capture_rng, restore_rng

Results: TypeAlias = Callable[[int, int], Generator[tuple[TrainStep, float, int], None, None]]
"Takes the steps of an epoch, without the first ones, as :meth:`TrainSession.results` does."


@dataclass(eq=False)
class TrainSession:
    """One run in progress."""

    model: nn.Module
    "The model that is trained."
    source: EpochSource
    "Gives the work of each epoch, and measures the model."
    device: torch.device
    "Where the model computes."
    config: TrainConfig
    "How to train."
    optimizer: torch.optim.Optimizer
    "Steps the model's parameters."
    scheduler: LRScheduler | None
    "Sets the optimizer's learning rates; None keeps them."
    tracker: BestTracker
    "Remembers the best epoch."
    team: Team = SOLO
    "The workers that train together."
    epoch: int = field(default=0, init=False)
    "Number of the last epoch that has ended; 0 before the first one has."
    progress: EpochProgress | None = field(default=None, init=False)
    "The epoch after that, so far; None where none of its batches is trained."
    history: list[EpochRecord] = field(default_factory=list, init=False)
    "The records of all epochs that have ended."
    is_ahead: bool = field(default=False, init=False)
    "Whether the weights are already those of the epoch, or the batch, after the last one that was reported."

    def run(self, reporters: Sequence[Reporter], *, stops: Callable[[], bool], say: Callable[[str], None]) -> None:
        """Train until the run has ended, or ``stops`` after an epoch or a mini-batch; ``reporters`` are told of each, ``say`` of what is not recorded."""
        if (on_device := self.source.on_device()) is None:
            self.run_epochs(reporters, stops=stops)
        else:
            on_device(self, self.source, say).run(reporters, stops=stops)

    def run_epochs(
        self, reporters: Sequence[Reporter], *, stops: Callable[[], bool], results: Results | None = None
    ) -> None:
        """Train until the run has ended or ``stops``, with ``results`` that take the steps of an epoch, by default :meth:`results`."""
        run_epoch = partial(self.run_epoch, reporters=reporters, stops=stops, results=results)
        while not (self.finished or stops()) and (record := run_epoch()) is not None:
            for reporter in reporters:
                reporter.on_epoch(record)

    def run_epoch(
        self,
        reporters: Sequence[Reporter] = (),
        *,
        stops: Callable[[], bool] = lambda: False,
        results: Results | None = None,
    ) -> EpochRecord | None:
        """Train an epoch, or what is left of it, evaluate it where it is due, step the scheduler, and add it to the history.

        ``reporters`` are told of its batches. Where it ``stops`` between two of them, the epoch is left there for the next call, and the result is None.
        """
        epoch = self.epoch + 1
        check_rates(self.scheduler, self.optimizer)
        lr = float(self.optimizer.param_groups[0]["lr"])
        self.model.train()
        progress = self.progress or EpochProgress(epoch=epoch, num_batches=self.source.num_batches)
        since_s = self._now_s() - progress.train_s
        # A run that resumes has the state of the first worker alone.
        self.team.share_random_numbers(self.device)
        with closing((results or self.results)(epoch, progress.batch)) as taken:
            for step, loss, num_edges in taken:
                train_s = time.perf_counter() - since_s
                progress = progress.after(step, loss=loss, num_edges=num_edges, train_s=train_s)
                if progress.is_whole:
                    continue
                self.progress, paused_s = progress, time.perf_counter()
                for reporter in reporters:
                    reporter.on_batch(progress)
                if not self.is_ahead and stops():
                    return None
                since_s += time.perf_counter() - paused_s
        trained = replace(progress, train_s=self._now_s() - since_s)
        metrics = self.evaluate(epoch)
        step_scheduler(self.scheduler)
        return self.end_epoch(trained, lr, metrics, self.model.state_dict)

    def is_due(self, epoch: int) -> bool:
        """Whether the metrics of an epoch count for patience, for the best weights, and for a scheduler that goes by them."""
        return epoch % self.config.eval_every == 0

    def is_measured(self, epoch: int) -> bool:
        """Whether an epoch is evaluated. Where ``eval_every`` does not divide the number of epochs, the last one is for the history only: a
        longer run does not evaluate it, and continuing this run must give the same.
        """
        return self.is_due(epoch) or epoch == self.config.epochs

    def evaluate(self, epoch: int) -> dict[str, Metrics]:
        """The metrics of an epoch by split; none where it is not evaluated."""
        return self._of_first(self.source.measure({self.tracker.metric})) if self.is_measured(epoch) else {}

    def end_epoch(
        self,
        trained: EpochProgress,
        lr: float,
        metrics: Mapping[str, Metrics],
        weights: Callable[[], Mapping[str, Any]],
    ) -> EpochRecord:
        """Add a trained epoch to the history. Where it is due, its metrics are compared with the best ones; ``weights`` gives those that it ended with."""
        epoch, epoch_s, num_edges = trained.epoch, trained.train_s, trained.num_edges
        for split, found in metrics.items():
            for name, value in found.items():
                self.require_finite(value, f"{split}/{name} of epoch {epoch}")
        if self.is_due(epoch):
            self.tracker.update(epoch, metrics, weights)
            step_scheduler(self.scheduler, self.tracker.monitored(metrics))
        extra = self.source.end_epoch(0 if self.tracker.exhausted else self.config.epochs - epoch)
        if self.config.sample is not None:
            extra["mteps"] = 1e-6 * num_edges / max(epoch_s, 1e-9)
        numbers = {"epoch": epoch, "loss": trained.loss, "epoch_s": epoch_s, "lr": lr, "num_edges": num_edges}
        record = EpochRecord(**numbers, metrics=metrics, extra=extra)  # type: ignore[arg-type]
        self.epoch, self.progress = epoch, None
        self.history.append(record)
        return record

    @property
    def position(self) -> Position:
        """How far the run has come."""
        return Position(self.epoch, 0 if self.progress is None else self.progress.batch)

    @property
    def finished(self) -> bool:
        """Whether no epoch is left to train."""
        return self.tracker.exhausted or self.epoch >= self.config.epochs

    def _now_s(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def results(self, epoch: int, first: int) -> Generator[tuple[TrainStep, float, int], None, None]:
        """Take the steps of an epoch without the ``first`` ones; each with its loss and its number of edges."""
        rates: Sequence[Tensor] = ()
        if self.device.type != "cpu":
            numbers = [float(group["lr"]) for group in self.optimizer.param_groups]
            rates = torch.tensor(numbers).to(self.device).unbind()
        with closing(self.source.steps(epoch, first=first)) as steps:
            for step in steps:
                yield step, *self._step(step, epoch, rates)

    def _step(self, step: TrainStep, epoch: int, rates: Sequence[Tensor] = ()) -> tuple[float, int]:
        values: list[float] = []

        def read(loss: Tensor) -> None:
            values.append(loss.item())
            self.require_finite(values[-1], f"training loss of epoch {epoch}")

        _, num_edges = self.queue_step(step, rates, read=read)
        if type(self.optimizer) not in ELEMENTWISE:
            self.team.share(self._trained(), "sharing the weights")
        return values[0], num_edges

    def queue_step(
        self, step: TrainStep, rates: Sequence[Tensor], *, read: Callable[[Tensor], None] | None = None
    ) -> tuple[Tensor, int]:
        """Take one optimizer step; its loss and number of edges. Every torch optimizer takes a closure; LBFGS calls the closure several times.

        ``rates`` are the groups' learning rates on the device, for an optimizer that reads them there. ``read`` is called with each loss, before
        it is stepped.
        """
        found: list[tuple[Tensor, int]] = []
        in_model = False

        def closure() -> Tensor:
            nonlocal in_model
            in_model = True
            found.append(self._gradients(step, read))
            in_model = False
            return found[-1][0]

        name = type(self.optimizer).__name__
        with explained("optimizer", name, unless=lambda: in_model), with_rates(self.optimizer, rates):
            self.optimizer.step(closure)  # type: ignore[arg-type]
        return found[0]

    def _gradients(self, step: TrainStep, read: Callable[[Tensor], None] | None) -> tuple[Tensor, int]:
        """The loss of a step, whose gradients are now those of the parameters, and the step's number of edges."""
        self.optimizer.zero_grad()
        # Also gradients of parameters that the optimizer does not step: they would add up.
        self.model.zero_grad()
        where = f"model {class_of(self.model).__name__}"
        try:
            loss = step.loss()
            if not loss.requires_grad:
                raise LayerError(
                    "the model's output cannot be differentiated: no gradient leads from it to the parameters "
                    f"(in {where})",
                    hint="Leave out detach(), torch.no_grad() and whatever else cuts the gradient between parameters and output.",
                )
            step.backward(loss)
            loss, num_edges = step.complete(loss.detach(), step.num_edges)
            # Read where all work of the step is queued: a CUDA device does not wait for the host.
            if read is not None:
                read(loss)
        except RuntimeError as error:
            text = str(error)
            if "deterministic" in text:
                raise InputError(
                    f"an operator of the model is not reproducible: {first_line(error)} (in TrainConfig.deterministic)",
                    hint="Replace the operator, or set deterministic = false and accept runs that differ in the last bits.",
                ) from error
            if "modified by an inplace operation" in text:
                raise LayerError(
                    f"the model cannot be differentiated: it overwrites a value that its gradient needs (in {where})",
                    hint="Write y = y + 1 instead of y.add_(1) or y += 1.",
                ) from error
            raise
        if self.config.clip_norm is not None:
            trained = self._trained()
            norm = nn.utils.get_total_norm([each.grad for each in trained if each.grad is not None])
            if self.team.size > 1:
                norm = norm.new_tensor(self._of_first(float(norm)))
            nn.utils.clip_grads_with_norm_(trained, self.config.clip_norm, norm)
        return loss, num_edges

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _of_first(self, numbers: Any) -> Any:
        """JSON numbers as the first worker has found them: sums of other machines, or of other threads, may differ in their last bits."""
        content = json.dumps(numbers).encode() if self.team.is_first else None
        return json.loads(self.team.from_first(content, "sharing the first worker's numbers", timeout_s=None))

    def require_finite(self, value: float, what: str) -> None:
        """Refuse a loss or a metric of a run that has diverged."""
        if math.isfinite(value):
            return
        config = self.config
        clip = "" if config.clip_norm is not None else ", or clip gradients (clip_norm = 1)"
        hint = f"Lower lr (try {config.lr / 10:g}){clip}; large feature values want normalising first."
        for group in self.optimizer.param_groups:
            dtypes, eps = {parameter.dtype for parameter in group["params"]}, group.get("eps")
            if isinstance(eps, float) and (lost := [each for each in dtypes if not torch.tensor(eps, dtype=each)]):
                hint = f"eps of the optimizer, {eps:g}, is 0 in {lost[0]}: set eps to 1e-4 in optimizer_options, or train in torch.bfloat16."
        raise InputError(
            f"training diverged: the {what} is {value} (in optimizer {config.optimizer} with lr {config.lr:g})",
            hint=hint,
        )

    def state_dict(self, *, run: str, history_bytes: int) -> State:
        """The whole state after the last trained batch, for a run's digest and a length of metrics.jsonl."""
        return {
            "epoch": self.position.epoch,
            "batch": self.position.batch,
            "progress": self.progress and asdict(self.progress),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler and self.scheduler.state_dict(),
            "best": self.tracker.state_dict(),
            "rng": capture_rng(self.device),
            "source": self.source.state_dict(),
            "run": run,
            "history_bytes": history_bytes,
        }

    def restore(self, state: State, history: list[EpochRecord]) -> None:
        """Continue from a state of this run, after the epochs of ``history``, as an uninterrupted run would."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(continued(self.optimizer, state["optimizer"]))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.tracker.load_state_dict(state["best"])
        self.source.load_state_dict(state["source"])
        self.epoch, self.history = state["epoch"], history
        self.progress = EpochProgress(**state["progress"]) if state["progress"] else None
        restore_rng(state["rng"], self.device)


def resolve_monitor(config: TrainConfig, contract: Contract, splits: Mapping[str, Tensor]) -> str:
    """The metric to monitor: the configured one, or a default for the task and the splits."""
    present, kind = present_splits(splits), KINDS[contract.kind]
    if config.monitor is None:
        return f"val/{kind.monitor}" if "val" in present else "train/loss"
    split, _, metric = config.monitor.partition("/")
    if metric not in kind.metrics:
        raise InputError(
            f"the monitored metric is of another task: '{config.monitor}', the task {contract.task} has {', '.join(kind.metrics)} (in "
            "TrainConfig.monitor)",
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

    ``monitor`` is 'split/metric'. After ``patience`` epochs without improvement, the tracker is exhausted. An equal value is no improvement.
    """

    def __init__(self, monitor: str, *, keep_weights: bool, patience: int | None) -> None:
        self.monitor, self.keep_weights, self.patience = monitor, keep_weights, patience
        self.split, _, self.metric = monitor.partition("/")
        self.maximise = self.metric not in ERRORS
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

    def update(self, epoch: int, metrics: Mapping[str, Metrics], weights: Callable[[], Mapping[str, Any]]) -> None:
        """Compare an evaluated epoch with the best one so far; ``weights`` gives those that it ended with."""
        value, best = self.monitored(metrics), self.value
        self.evaluated = epoch
        if best is None or (value > best if self.maximise else value < best):
            self.improved = epoch
        elif value != best:
            return
        self.epoch, self.value = epoch, value
        if self.keep_weights:
            # Training does not change copies.
            self.weights = {
                name: value.detach().clone() if isinstance(value, Tensor) else value
                for name, value in weights().items()
            }

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
        return {name: getattr(self, name) for name in ("epoch", "value", "improved", "evaluated", "weights")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        vars(self).update(state)

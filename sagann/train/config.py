"""TrainConfig: how to train, apart from the model and the graph. Checked when it is made, saved as JSON."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from sagann.byte_size import parse_bytes
from sagann.errors import InputError
from sagann.train.metrics import METRICS
from sagann.train.policies import DECAY_POLICIES, closest

MONITOR_SPLITS = ("train", "val")
WEIGHTS = ("best", "last")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How to train: length, optimizer, scheduler, early stopping, checkpoints.

    Raises:
        InputError: a field is out of its range, or an option is unknown to the optimizer or scheduler.
    Example:
        >>> TrainConfig(epochs=100, optimizer="SGD", lr=0.1, optimizer_options={"momentum": 0.9}).lr
        0.1
        >>> TrainConfig(optimizer="Adma")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        sagann.errors.InputError: unknown optimizer: 'Adma' (in TrainConfig.optimizer). Did you mean ...
    """

    epochs: int = 200
    "Passes over the training vertices, at least 1."
    optimizer: str = "Adam"
    "Name of a class in torch.optim."
    lr: float = 0.01
    "Learning rate, above 0."
    weight_decay: float | None = None
    "L2 penalty (decoupled in AdamW), at least 0. None is 5e-4 (Kipf's GCN), or 0 for an optimizer without one."
    decay: str = "all"
    "Which parameters weight_decay is for: 'all', 'first-layer' (Kipf's GCN) or 'matrices' (no biases, no norms)."
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    "Further arguments of the optimizer ('momentum', 'betas', ...)."
    scheduler: str | None = None
    "Name of a class in torch.optim.lr_scheduler, stepped once per epoch; None keeps the learning rate."
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)
    "Arguments of the scheduler ('step_size', 'gamma', ...)."
    clip_norm: float | None = None
    "Largest norm of all gradients together; larger ones are scaled down. None does not clip."
    seed: int = 0
    "Seed of every random number from the start of training (and of the weights, where Trainer builds the model)."
    device: str = "auto"
    "'cpu', 'cuda' or 'cuda:N'; 'auto' is cuda where there is one."
    deterministic: bool = True
    "Refuse operators that have no reproducible implementation on the device; the same seed gives the same bits."
    memory: str | None = None
    """What an epoch's tensors of vertices and edges may take, as '2GiB': the model is then streamed by intervals, with the
    numbers of a dense run. None trains with everything in memory where that holds it, and is else what is free."""
    spill: str | None = None
    """Folder for what a streamed model does not hold in memory; None is one in the run folder, or the system's for temporary
    files; and beside a CUDA device, the host's memory."""
    profile: bool = False
    """Write profile.json and profile.png into the run folder: when each step and each copy of the last streamed epoch ran,
    and was to be expected, in Chrome's format for traces and as a picture."""
    monitor: str | None = None
    "Metric that early stopping and the best weights go by: 'val/accuracy', 'val/loss', 'train/loss', ... None is \
'val/accuracy' ('val/micro_f1' for multi-label), or 'train/loss' where there is no val split."
    patience: int | None = None
    "Stop after so many epochs in which the monitored metric did not improve; None never stops early."
    weights: str | None = None
    "The weights a run ends with: 'best' by the monitor or 'last'. None is 'best' where val is monitored, else 'last'."
    eval_every: int = 1
    """Epochs between evaluations of train and val. The last epoch is always evaluated; where it is none of these it
    is reported only: it cannot become the best epoch, and steps no scheduler."""
    checkpoint_every: int = 10
    "Epochs between checkpoints, if there is a run folder. The last epoch always leaves one."
    keep_checkpoints: int = 2
    "Number of newest checkpoints to keep, at least 1."
    tensorboard: bool = False
    "Write TensorBoard events into the run folder (extra 'tensorboard')."

    def __post_init__(self) -> None:
        optimizer = _torch_class(torch.optim, torch.optim.Optimizer, self.optimizer, "optimizer")
        has_decay = "weight_decay" in inspect.signature(optimizer).parameters
        if self.weight_decay is None:
            object.__setattr__(self, "weight_decay", 5e-4 if has_decay else 0.0)
        _check_numbers(self)
        _check_choices(self)
        _check_options(optimizer, self.optimizer_options, {"params", "lr", "weight_decay"}, "optimizer_options")
        if self.weight_decay and not has_decay:
            raise InputError(
                "the optimizer has no weight decay",
                value=f"weight_decay {self.weight_decay:g} with optimizer '{self.optimizer}'",
                where="TrainConfig.weight_decay",
                fix="Set it to 0, or choose an optimizer that has it (Adam, AdamW, SGD, ...).",
            )
        if self.scheduler is not None:
            schedulers = torch.optim.lr_scheduler
            scheduler = _torch_class(schedulers, schedulers.LRScheduler, self.scheduler, "scheduler")
            _check_options(scheduler, self.scheduler_options, {"optimizer"}, "scheduler_options")
        elif self.scheduler_options:
            raise _refused("scheduler_options", dict(self.scheduler_options), "nothing: no scheduler is set")
        if self.spill is not None:
            # A run is continued, and used, from other folders.
            object.__setattr__(self, "spill", os.path.abspath(self.spill))

    @property
    def memory_bytes(self) -> int | None:
        """``memory`` in bytes."""
        return None if self.memory is None else parse_bytes(self.memory, where="TrainConfig.memory")

    def to_json(self) -> dict[str, Any]:
        """Every field as JSON values; :meth:`from_json` reads it back."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Make a configuration of named values.

        Raises:
            InputError: a name is no field, or a value is refused.
        """
        names = [f.name for f in fields(cls)]
        for name in values:
            if name not in names:
                raise InputError(
                    "unknown training option",
                    value=f"'{name}'",
                    where="TrainConfig",
                    fix=closest(name, names),
                )
        return cls(**values)


def _check_numbers(config: TrainConfig) -> None:
    for name, low in (
        ("epochs", 1),
        ("eval_every", 1),
        ("checkpoint_every", 1),
        ("keep_checkpoints", 1),
        ("seed", 0),
    ):
        _check_int(name, getattr(config, name), low)
    if config.seed >= 2**63:
        raise _refused("seed", config.seed, "an integer below 2^63")
    if config.patience is not None:
        _check_int("patience", config.patience, 1)
    for name in ("lr", "clip_norm"):
        value = getattr(config, name)
        if value is not None or name == "lr":
            _check_float(name, value, above=True)
    _check_float("weight_decay", config.weight_decay, above=False)


def _check_int(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise _refused(name, value, f"an integer of at least {low}")


def _check_float(name: str, value: object, *, above: bool) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared, not converted: Python's integers may be too large for a float.
    if not is_number or not 0 <= value <= sys.float_info.max or (above and value == 0):  # type: ignore[operator]
        raise _refused(name, value, "a finite number above 0" if above else "a finite number of at least 0")


def _check_choices(config: TrainConfig) -> None:
    for name in ("deterministic", "tensorboard", "profile"):
        if not isinstance(getattr(config, name), bool):
            raise _refused(name, getattr(config, name), "true or false")
    if not isinstance(config.device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", config.device):
        raise _refused("device", config.device, "'cpu', 'cuda', 'cuda:N' or 'auto'")
    if not isinstance(config.decay, str) or config.decay not in DECAY_POLICIES:
        raise _refused("decay", config.decay, f"one of {', '.join(DECAY_POLICIES)}")
    for name in ("memory", "spill"):
        if not isinstance(getattr(config, name), str | None):
            raise _refused(name, getattr(config, name), "a string, or None")
    if config.memory_bytes == 0:
        raise _refused("memory", config.memory, "a size above 0")
    if config.spill == "":
        raise _refused("spill", config.spill, "a folder")
    if config.profile and config.memory is None:
        raise InputError(
            "only a streamed epoch is profiled",
            value="profile, and no memory",
            where="TrainConfig.profile",
            fix="Set memory (--memory 2GiB), or leave profile out.",
        )
    if config.weights is not None and config.weights not in WEIGHTS:
        raise _refused("weights", config.weights, "'best' or 'last'")
    if config.monitor is None:
        return
    split, _, metric = str(config.monitor).partition("/")
    if split == "test":
        raise InputError(
            "the test split cannot be monitored",
            value=repr(config.monitor),
            where="TrainConfig.monitor",
            fix="Monitor 'val/...' or 'train/...': weights chosen by the test split make its metrics worthless.",
        )
    if split not in MONITOR_SPLITS or metric not in METRICS:
        raise _refused("monitor", config.monitor, f"'train' or 'val', a slash, and one of {', '.join(METRICS)}")


def _torch_class(module: Any, base: type, name: object, what: str) -> type:
    known = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
    known = sorted(key for key in known if key != base.__name__ and not key.startswith("_"))
    if name in known:
        kind: type = getattr(module, str(name))
        return kind
    raise InputError(
        f"unknown {what}", value=repr(name), where=f"TrainConfig.{what}", fix=closest(str(name), known)
    )


def _check_options(kind: type, options: object, taken: Collection[str], what: str) -> None:
    if not isinstance(options, Mapping):
        raise _refused(what, options, "a mapping of option to value")
    known = [name for name in inspect.signature(kind).parameters if name not in taken]
    for name, value in options.items():
        where = f"TrainConfig.{what}"
        if name in taken:
            raise InputError(
                f"{what} sets what has its own place", value=f"'{name}'", where=where, fix="Leave it out."
            )
        if name not in known:
            raise InputError(
                f"{kind.__name__} has no such option", value=repr(name), where=where, fix=closest(str(name), known)
            )
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{what} cannot be saved as JSON",
                value=f"'{name}' is {value!r}: {error}",
                where=where,
                fix="Use numbers, strings, lists and mappings; pass anything else through Trainer(optimizer=...) "
                "or Trainer(scheduler=...).",
            ) from error


def _refused(name: str, value: object, expected: str) -> InputError:
    return InputError(
        f"training option {name} is refused",
        value=f"{value!r}, expected {expected}",
        where=f"TrainConfig.{name}",
        fix=f"Set {name} to {expected}." if not expected.startswith("nothing") else f"Remove {name}.",
    )

"""Names and texts in a :class:`sagann.TrainConfig` that only registries know: of tasks, losses, metrics, PyTorch's classes and devices."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Any

import torch

from sagann.config import TrainConfig
from sagann.constructor_options import check_options
from sagann.did_you_mean import closest, nearest
from sagann.errors import InputError, shown
from sagann.graph.answers import ALL_TASKS
from sagann.options import options_of
from sagann.train.losses import LOSS_ALIASES, LOSSES
from sagann.train.metrics import METRICS


def check_names(config: TrainConfig) -> None:
    """Check the names, set the loss to its first name, and the weight decay to the optimizer's.

    Raises:
        InputError: a name is unknown, or an option is unknown to the optimizer or the scheduler.
    """
    if config.task is not None and config.task not in ALL_TASKS:
        raise _unknown("task", config.task, ALL_TASKS)
    if config.loss is not None:
        loss = LOSS_ALIASES.get(config.loss, config.loss)
        if loss not in LOSSES:
            known = (*LOSSES, *LOSS_ALIASES)
            raise _unknown("loss", config.loss, known, " Pass a function as Trainer(..., loss=...).")
        object.__setattr__(config, "loss", loss)
    _check_monitor(config)
    optimizer = _class_of_torch(torch.optim, torch.optim.Optimizer, config.optimizer, "optimizer")
    has_decay = "weight_decay" in inspect.signature(optimizer).parameters
    if config.weight_decay is None:
        object.__setattr__(config, "weight_decay", 5e-4 if has_decay else 0.0)
    _check_arguments(config, "optimizer", optimizer, {"params", "lr", "weight_decay"})
    if config.weight_decay and not has_decay:
        expected = f"0 for the optimizer '{config.optimizer}', which has no weight decay"
        raise options_of(TrainConfig)["weight_decay"].refused(config.weight_decay, expected)
    if config.scheduler is not None:
        schedulers = torch.optim.lr_scheduler
        scheduler = _class_of_torch(schedulers, schedulers.LRScheduler, config.scheduler, "scheduler")
        _check_arguments(config, "scheduler", scheduler, {"optimizer"})
    if config.hot is not None:
        # Imported here: most runs have no tiers, and it loads Numba.
        from sagann.runtime.tiered.hot_size import parse_hot

        parse_hot(config.hot, where="TrainConfig.hot")
    if config.devices is not None:
        # Imported here: most runs have one trainer.
        from sagann.hybrid.devices import Devices

        Devices.parse(config.devices, where="TrainConfig.devices")


def _check_monitor(config: TrainConfig) -> None:
    name = config.monitor
    split, _, metric = (name or "").partition("/")
    # Weights chosen by the test split would make its metrics worthless.
    if name is None or (split in ("train", "val") and metric in METRICS):
        return
    expected = f"'train' or 'val' (never 'test'), a slash, and one of {', '.join(METRICS)}"
    # Offer the nearest for a name such as 'val_acc' or 'auc'.
    found = re.match(r"(train|val|test)[a-z]*[/_ -]", name)
    near = nearest(name[found.end() :] if found else name, METRICS)
    hint = f"Did you mean '{'train' if name.startswith('train') else 'val'}/{near}'? " if near else ""
    raise options_of(TrainConfig)["monitor"].refused(name, expected, f"{hint}Set monitor to {expected}.")


def _unknown(what: str, value: object, known: Collection[str], otherwise: str = "") -> InputError:
    where, hint = f"TrainConfig.{what}", closest(value, known) + otherwise
    return InputError(f"unknown {what}: {shown(value)} (in {where})", hint=hint)


def _class_of_torch(module: Any, base: type, name: str, what: str) -> type:
    """The class of an optimizer or a scheduler, by its name in PyTorch."""
    classes = {
        key: kind
        for key, kind in sorted(vars(module).items())
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base and not key.startswith("_")
    }
    if name not in classes:
        raise _unknown(what, name, classes, f" Pass a function that makes one as Trainer(..., {what}=...).")
    return classes[name]


def _check_arguments(config: TrainConfig, role: str, kind: type, taken: Collection[str]) -> None:
    """Refuse options of the optimizer or the scheduler that its class does not take."""
    what = f"{role}_options"
    # PyTorch takes other types than its annotations say, and checks them itself.
    check_options(kind, getattr(config, what), taken=taken, where=f"TrainConfig.{what}", what=what, by_type=False)

"""Values that the fields of a :class:`sagann.train.TrainConfig` may have, each by itself and beside others."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sagann.byte_size import parse_bytes
from sagann.constructor_options import check_options, require_options
from sagann.did_you_mean import closest, did_you_mean, nearest
from sagann.errors import InputError, shown
from sagann.graph.answers import ALL_TASKS
from sagann.ranges import RANGES
from sagann.storage.json_fields import is_finite
from sagann.train.losses import BALANCED, LOSS_ALIASES, LOSSES
from sagann.train.metrics import METRICS
from sagann.train.policies import DECAY_POLICIES

if TYPE_CHECKING:
    from sagann.train.config import TrainConfig

MAPPINGS = ("cores", "model")
"How a run of several trainers begins."


def has_default(config: TrainConfig, name: str) -> bool:
    """Whether a field has its default."""
    return bool(getattr(config, name) == config.__dataclass_fields__[name].default)


def require_defaults(config: TrainConfig, names: Collection[str], where: str, *, otherwise: str = "") -> None:
    """Refuse fields that have no effect where they do not have their defaults; ``otherwise`` is what gives them one."""
    for name in names:
        if not has_default(config, name):
            fix = f"Leave {name} out, or {otherwise}." if otherwise else f"Leave {name} out."
            raise refused(
                name, getattr(config, name), f"{config.__dataclass_fields__[name].default} where {where}", fix
            )


def check_values(config: TrainConfig) -> None:
    """Refuse a value that its field may not have, whatever the other fields are."""
    for name, (fits, expected) in _CHECKS.items():
        if not fits(getattr(config, name)):
            raise refused(name, getattr(config, name), expected)


def check_loss(config: TrainConfig) -> None:
    """Check task, loss and class weights, and set the loss to its first name."""
    if config.task is not None and config.task not in ALL_TASKS:
        raise _unknown("task", config.task, ALL_TASKS)
    if config.loss is not None:
        name = LOSS_ALIASES.get(config.loss, config.loss) if isinstance(config.loss, str) else config.loss
        if not isinstance(name, str) or name not in LOSSES:
            raise _unknown(
                "loss", config.loss, (*LOSSES, *LOSS_ALIASES), " Pass a function as Trainer(..., loss=...)."
            )
        object.__setattr__(config, "loss", name)
    weights = config.class_weights
    if weights is not None and weights != BALANCED:
        is_list = isinstance(weights, list | tuple) and len(weights) > 0
        if not is_list or not all(_is_number(weight, above=False) for weight in weights):
            expected = "'balanced', or a list of finite numbers, each at least 0, one for each class"
            raise refused("class_weights", weights, expected)
        # JSON and TOML have lists.
        object.__setattr__(config, "class_weights", tuple(float(weight) for weight in weights))


def _unknown(what: str, value: object, known: Collection[str], otherwise: str = "") -> InputError:
    where, fix = f"TrainConfig.{what}", closest(value, known) + otherwise
    return InputError(f"unknown {what}", value=shown(value), where=where, fix=fix)


def check_tiers(config: TrainConfig) -> None:
    """Check the options of the hot tier."""
    # Imported here: most runs have no tiers, and it loads Numba.
    from sagann.runtime.tiered.hot_size import parse_hot
    from sagann.tiering import CACHES, SCORES

    if config.hot is not None:
        parse_hot(config.hot, where="TrainConfig.hot")
    for name, known in (("score", SCORES), ("cache", tuple(CACHES))):
        if getattr(config, name) not in known:
            raise refused(name, getattr(config, name), f"one of {', '.join(known)}")


def check_devices(config: TrainConfig) -> None:
    """Check the options of several trainers."""
    # Imported here: most runs have one trainer.
    from sagann.hybrid.devices import Devices
    from sagann.plan.hybrid.policies import POLICIES

    Devices.parse(str(config.devices), where="TrainConfig.devices")
    if config.sharing not in tuple(POLICIES):
        raise refused("sharing", config.sharing, f"one of {', '.join(POLICIES)}")
    if config.mapping not in MAPPINGS:
        raise refused("mapping", config.mapping, f"one of {', '.join(MAPPINGS)}")
    if config.device not in ("auto", "cpu"):
        raise refused("device", config.device, "'auto' or 'cpu' where devices is set")
    require_defaults(config, ("hot", "memory", "sample_on"), "devices is set", otherwise="leave devices out")


def class_of_torch(module: Any, base: type, name: object, what: str) -> type:
    """The class of an optimizer or a scheduler, by its name in PyTorch."""
    classes = {
        key: kind
        for key, kind in sorted(vars(module).items())
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base and not key.startswith("_")
    }
    if not isinstance(name, str) or name not in classes:
        raise _unknown(what, name, classes, f" Pass a function that makes one as Trainer(..., {what}=...).")
    return classes[name]


def check_options_of(config: TrainConfig, role: str, kind: type, taken: Collection[str]) -> None:
    """Refuse options of the optimizer or the scheduler that its class does not take, or that JSON cannot hold."""
    what = f"{role}_options"
    options, where = getattr(config, what), f"TrainConfig.{what}"
    require_options(options, where=where, what=what, otherwise=f"; pass anything else through Trainer({role}=...)")
    # PyTorch takes other types than its annotations say, and checks them itself.
    check_options(kind, options, taken=taken, where=where, what=what, by_type=False)


def refused(name: str, value: object, expected: str, fix: str = "") -> InputError:
    """The error of a field's value; ``fix`` is advice other than to set what is expected."""
    words = re.findall("'([^']+)'", expected) or expected.removeprefix("one of ").split(", ")
    near = _near_monitor(str(value)) if name == "monitor" else did_you_mean(value, words)
    return InputError(
        f"training option {name} is refused",
        value=f"{shown(value)}, expected {expected}",
        where=f"TrainConfig.{name}",
        fix=fix or f"{near}Set {name} to {expected}.",
    )


def _near_monitor(value: str) -> str:
    """Offer the split and metric that are nearest to a name such as 'val_acc' or 'auc'."""
    split = re.match(r"(train|val|test)[a-z]*[/_ -]", value)
    metric = nearest(value[split.end() :] if split else value, METRICS)
    return f"Did you mean '{'train' if value.startswith('train') else 'val'}/{metric}'? " if metric else ""


def _are_fanouts(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        # Integers of NumPy are integers as well.
        and all(n == -1 or (int(n) if isinstance(n, np.integer) else n) in RANGES["fanout"] for n in value)
    )


def _absent_or(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _is_number(value: Any, *, above: bool) -> bool:
    return is_finite(value) and value >= 0 and not (above and value == 0)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_size(value: Any) -> bool:
    return isinstance(value, str) and parse_bytes(value, where="TrainConfig.memory") > 0


def _is_path(value: Any) -> bool:
    try:
        return isinstance(value, str) and value != "" and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_device(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"auto|cpu|cuda(:\d+)?", value))


def _is_monitor(value: Any) -> bool:
    # Weights chosen by the test split would make its metrics worthless.
    split, _, metric = str(value).partition("/")
    return value is None or (split in ("train", "val") and metric in METRICS)


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{
        name: (RANGES[name].__contains__, str(RANGES[name]))
        for name in ("epochs", "eval_every", "checkpoint_every", "keep_checkpoints", "seed", "sampling_threads")
    },
    **{
        name: (_absent_or(RANGES[name].__contains__), str(RANGES[name]))
        for name in ("patience", "batches_ahead", "batch_size")
    },
    "negatives": (RANGES["drawn_negatives"].__contains__, str(RANGES["drawn_negatives"])),
    "lr": (partial(_is_number, above=True), "a finite number above 0"),
    **dict.fromkeys(
        ("clip_norm", "link_rate"), (_absent_or(partial(_is_number, above=True)), "a finite number above 0")
    ),
    "devices": (_absent_or(_is_text), "a list as a string, or None"),
    "weight_decay": (partial(_is_number, above=False), "a finite number of at least 0"),
    **dict.fromkeys(
        ("deterministic", "tensorboard", "profile", "keep_positives"),
        (lambda value: isinstance(value, bool), "True or False"),
    ),
    "device": (_is_device, "'cpu', 'cuda', 'cuda:N' or 'auto'"),
    "decay": (lambda value: value in tuple(DECAY_POLICIES), f"one of {', '.join(DECAY_POLICIES)}"),
    "sample_on": (lambda value: value in ("cpu", "device"), "'cpu' or 'device'"),
    "sample": (
        _absent_or(_are_fanouts),
        f"a list of numbers such as (25, 10), each {RANGES['fanout']} or -1, or None",
    ),
    "hot": (_absent_or(_is_text), "a size or a part as a string, 'auto', or None"),
    "memory": (_absent_or(_is_size), "a size above 0 as a string such as '2GiB', or None"),
    "spill": (_absent_or(_is_path), "a folder, or None"),
    "monitor": (_is_monitor, f"'train' or 'val' (never 'test'), a slash, and one of {', '.join(METRICS)}"),
    "weights": (
        lambda value: value in ("best", "last", None),
        "'best' or 'last' (weights of classes are class_weights)",
    ),
}
"For each field, a function that tells whether it may have a value, and its values in words."

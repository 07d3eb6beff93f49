"""Policies of a training run: weight decay, optimizer, learning-rate scheduler; and the names in a :class:`sagann.TrainConfig`.

TrainConfig names each policy, so that a run can be reopened. A callable of the user's may replace each one in Trainer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sagann.config import TrainConfig
from sagann.constructor_options import check_options
from sagann.errors import InputError, closest, nearest, shown
from sagann.graph.answers import ALL_TASKS
from sagann.options import options_of
from sagann.saga import SagaLayer
from sagann.train.losses import LOSS_ALIASES, LOSSES
from sagann.train.metrics import METRICS

_ELEMENTWISE = "ASGD Adadelta Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD"
ELEMENTWISE = tuple(getattr(torch.optim, name) for name in _ELEMENTWISE.split())
"Optimizers that step each number by itself. Others add numbers up, which machines may round differently."
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"Optimizers that have one kernel for all parameters on a CUDA device."
_REFUSALS = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, ArithmeticError, AssertionError)
"Errors that torch raises for options of a wrong type or value."
_TRIED_EPOCHS = 1000
"Most steps of a schedule that are tried before training."
_LARGEST_LR = torch.finfo(torch.float32).max

ParamGroup = dict[str, Any]
ParamGroups = Callable[[nn.Module, float], list[ParamGroup]]
"Splits a model's parameters into optimizer groups, given the weight decay."
OptimizerFactory = Callable[[list[ParamGroup]], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], LRScheduler]


def decay_all(model: nn.Module, weight_decay: float) -> list[ParamGroup]:
    """Decay every parameter: one group."""
    return _groups(model, weight_decay, lambda parameter: True)


def decay_first_layer(model: nn.Module, weight_decay: float) -> list[ParamGroup]:
    """Decay the parameters of the first SAGA layer only, or of the first child module where there is none.

    References:
        Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017, Sec. 5.2:
        "L2 regularization factor for the first GCN layer".
    """
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, SagaLayer)]
    layers = layers or [child for child in model.children() if any(True for _ in child.parameters())]
    first = {id(parameter) for parameter in layers[0].parameters()} if layers else set()
    return _groups(model, weight_decay, lambda parameter: id(parameter) in first)


def decay_matrices(model: nn.Module, weight_decay: float) -> list[ParamGroup]:
    """Decay weights of two or more dimensions; leave out biases and the scales of normalisation layers."""
    return _groups(model, weight_decay, lambda parameter: parameter.ndim >= 2)


DECAY_POLICIES: dict[str, ParamGroups] = {
    "all": decay_all,
    "first-layer": decay_first_layer,
    "matrices": decay_matrices,
}


def _groups(model: nn.Module, weight_decay: float, decays: Callable[[nn.Parameter], bool]) -> list[ParamGroup]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in trained if decays(each) == is_decayed], "weight_decay": decay}
        for is_decayed, decay in ((True, weight_decay), (False, 0.0))
    ]
    return [group for group in groups if group["params"]]


class Policies:
    """How a run makes its optimizer and scheduler: as ``config`` names them, or by functions of the user's.

    Raises:
        InputError: an optimizer or a scheduler is given, and not a function that makes one.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
        param_groups: ParamGroups | None = None,
    ) -> None:
        makers: dict[str, tuple[object, str]] = {
            "optimizer": (optimizer, "groups"),
            "scheduler": (scheduler, "optimizer"),
        }
        for what, (given, argument) in makers.items():
            if given is not None and not callable(given):
                kind = type(given).__name__
                name = given if isinstance(given, str) else kind
                raise InputError(
                    f"the Trainer makes its {what} itself: a {kind} is given, expected a function (in Trainer.{what})",
                    hint=f"Pass {what}=lambda {argument}: {name}({argument}, ...), or its name as "
                    f"TrainConfig({what}='{name}', ...).",
                )
        self._config, self._optimizer, self._scheduler = config, optimizer, scheduler
        self._groups = param_groups or DECAY_POLICIES[config.decay]

    def made(self, model: nn.Module, *, maximise: bool) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
        """The optimizer of a model, and its scheduler, if any; ``maximise`` says whether a higher monitored metric is better."""
        config = self._config
        # TrainConfig has put a number in place of None.
        assert config.weight_decay is not None
        optimizer = self.optimizer_of(self._groups(model, config.weight_decay))
        return optimizer, self._scheduler_of(optimizer, maximise=maximise)

    def try_out(self) -> None:
        """Make a named optimizer for a parameter of no use, and step a named scheduler: torch checks options when it uses them, perhaps late in training."""
        if self._optimizer is not None:
            return
        optimizer = self.optimizer_of([{"params": [nn.Parameter(torch.zeros(2, 2))]}])
        if self._scheduler is not None or self._config.scheduler is None:
            return
        scheduler = self._scheduler_of(optimizer, maximise=True)
        for _ in range(min(self._config.epochs, _TRIED_EPOCHS)):
            check_rates(scheduler, optimizer)
            optimizer.step(lambda: 0.0)
            step_scheduler(scheduler)
            step_scheduler(scheduler, 0.0)

    def _scheduler_of(self, optimizer: torch.optim.Optimizer, *, maximise: bool) -> LRScheduler | None:
        config = self._config
        if self._scheduler is not None:
            return self._scheduler(optimizer)
        if config.scheduler is None:
            return None
        kind: type[LRScheduler] = getattr(torch.optim.lr_scheduler, config.scheduler)
        options = dict(config.scheduler_options)
        if issubclass(kind, ReduceLROnPlateau):
            options.setdefault("mode", "max" if maximise else "min")
        with explained("scheduler", config.scheduler):
            scheduler = kind(optimizer, **options)
        # torch finds that out in the step after the last one.
        length = getattr(scheduler, "total_steps", None)
        if length is not None and length < config.epochs:
            raise InputError(
                f"the schedule ends before training: {length} steps, {config.epochs} epochs (in TrainConfig.scheduler_options)",
                hint=f"Set total_steps to at least {config.epochs}, or train for fewer epochs.",
            )
        return scheduler

    def optimizer_of(self, groups: list[ParamGroup]) -> torch.optim.Optimizer:
        """Make the optimizer. No groups, or a refusal of torch, is an InputError."""
        config = self._config
        if self._optimizer is not None:
            return self._optimizer(groups)
        if not groups:
            raise InputError(
                "the model has nothing to train: 0 parameters that require a gradient (in Trainer.model)",
                hint="Give the model parameters, or set requires_grad on them.",
            )
        kind: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, config.optimizer)
        taken, options = inspect.signature(kind).parameters, dict(config.optimizer_options)
        if "weight_decay" not in taken:
            groups = [{name: value for name, value in group.items() if name != "weight_decay"} for group in groups]
        if groups[0]["params"][0].device.type != "cpu":
            # All numbers stay on the device, whether epochs are recorded or not: both have the same bits.
            if kind in _FUSED and not {"foreach", "differentiable"} & options.keys():
                options.setdefault("fused", True)
            if "capturable" in taken:
                options.setdefault("capturable", True)
        with explained("optimizer", config.optimizer):
            optimizer = kind(groups, lr=config.lr, **options)
        # Options that serve recorded epochs do not slow down others here: torch warns of what it would be for its own kernels.
        optimizer._warned_capturable_if_run_uncaptured = True
        return optimizer


def continued(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of an optimizer that perhaps stepped on another device, with the options by which this one keeps its numbers."""
    own = [
        {name: group[name] for name in ("capturable", "fused") if name in group} for group in optimizer.param_groups
    ]
    return {**state, "param_groups": [saved | kept for saved, kept in zip(state["param_groups"], own, strict=True)]}


def steps_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step changes nothing but tensors on the device."""
    groups = optimizer.param_groups
    return type(optimizer) in ELEMENTWISE and all(each.get("capturable") or each.get("fused") for each in groups)


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is one kernel, which leaves the step out where a flag on the device says so."""
    return type(optimizer) in _FUSED and all(group.get("fused") for group in optimizer.param_groups)


def reads_rates(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step reads its learning rates on the device, without waiting for them: as float32, which would round those of float64 parameters."""
    learned = (each for group in optimizer.param_groups for each in group["params"])
    return is_fused(optimizer) and all(each.dtype != torch.float64 for each in learned)


@contextmanager
def skipping_steps(optimizer: Any, flag: Tensor) -> Iterator[None]:
    """Inside the block, a step changes nothing where ``flag``, a float32 scalar on the device, is 1 and not 0."""
    # As torch.amp.GradScaler hands it to a fused optimizer.
    optimizer.grad_scale, optimizer.found_inf = None, flag
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf


@contextmanager
def with_rates(optimizer: torch.optim.Optimizer, rates: Sequence[Tensor]) -> Iterator[None]:
    """Inside the block, the groups of an optimizer that reads them there have these learning rates. Schedulers and checkpoints have the numbers."""
    groups = optimizer.param_groups[: len(rates)] if reads_rates(optimizer) else []
    numbers = [group["lr"] for group in groups]
    for group, rate in zip(groups, rates, strict=False):
        group["lr"] = rate
    try:
        yield
    finally:
        for group, number in zip(groups, numbers, strict=True):
            group["lr"] = number


def step_scheduler(scheduler: LRScheduler | None, monitored: float | None = None) -> None:
    """Step ReduceLROnPlateau, where the ``monitored`` metric was measured, or without one any other scheduler, at the end of an epoch."""
    given = () if monitored is None else (monitored,)
    if scheduler is not None and isinstance(scheduler, ReduceLROnPlateau) == bool(given):
        with explained("scheduler", type(scheduler).__name__):
            scheduler.step(*given)


def check_rates(scheduler: LRScheduler | None, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a learning rate that a scheduler has made negative or too large for float32."""
    for lr in (float(group["lr"]) for group in optimizer.param_groups if scheduler is not None):
        if not 0 <= lr <= _LARGEST_LR:
            raise InputError(
                f"the scheduler {type(scheduler).__name__} leaves the range of learning rates: {lr:g}, "
                f"expected 0 to {_LARGEST_LR:.3g} (in TrainConfig.scheduler_options)",
                hint="Correct its options; a factor (gamma) is between 0 and 1, a period at least 1.",
            )


@contextmanager
def explained(what: str, name: str, *, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Inside the block, what torch refuses of an 'optimizer' or 'scheduler' of the class ``name`` is an InputError, unless something else failed."""
    try:
        yield
    except _REFUSALS as error:
        if unless():
            raise
        raise InputError(
            f"torch refuses the {what}: {name}: {error or type(error).__name__} (in TrainConfig.{what}_options)",
            hint=f"Correct its options; the documentation of {name} lists their types and ranges.",
        ) from error


def check_names(config: TrainConfig) -> None:
    """Check the names and options that only registries know, set the loss to its first name, and the weight decay to the optimizer's."""
    if config.task is not None and config.task not in ALL_TASKS:
        raise _unknown("task", config.task, ALL_TASKS)
    if config.loss is not None:
        loss = LOSS_ALIASES.get(config.loss, config.loss)
        if loss not in LOSSES:
            known = (*LOSSES, *LOSS_ALIASES)
            raise _unknown("loss", config.loss, known, " Pass a function as Trainer(..., loss=...).")
        object.__setattr__(config, "loss", loss)
    _check_monitor(config)
    kinds: dict[str, tuple[Any, type, set[str]]] = {
        "optimizer": (torch.optim, torch.optim.Optimizer, {"params", "lr", "weight_decay"})
    }
    if config.scheduler is not None:
        kinds["scheduler"] = torch.optim.lr_scheduler, LRScheduler, {"optimizer"}
    for what, (module, base, taken) in kinds.items():
        name, options = getattr(config, what), f"{what}_options"
        classes = {
            key: kind
            for key, kind in sorted(vars(module).items())
            if isinstance(kind, type) and issubclass(kind, base) and kind is not base and not key.startswith("_")
        }
        if name not in classes:
            raise _unknown(what, name, classes, f" Pass a function that makes one as Trainer(..., {what}=...).")
        # PyTorch takes other types than its annotations say, and checks them itself.
        where = f"TrainConfig.{options}"
        check_options(
            classes[name], getattr(config, options), taken=taken, where=where, what=options, by_type=False
        )
    has_decay = "weight_decay" in inspect.signature(getattr(torch.optim, config.optimizer)).parameters
    if config.weight_decay is None:
        object.__setattr__(config, "weight_decay", 5e-4 if has_decay else 0.0)
    if config.weight_decay and not has_decay:
        expected = f"0 for the optimizer '{config.optimizer}', which has no weight decay"
        raise options_of(TrainConfig)["weight_decay"].refused(config.weight_decay, expected)
    if config.hot is not None:
        from sagann.runtime.tiered.hot_size import parse_hot

        parse_hot(config.hot, where="TrainConfig.hot")
    if config.devices is not None:
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

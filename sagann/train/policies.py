"""Policies of a training run: weight decay, optimizer, learning-rate scheduler.

TrainConfig names each policy, so that a run can be reopened. A callable of the user's may replace each one in Trainer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sagann.errors import InputError
from sagann.saga import SagaLayer

if TYPE_CHECKING:
    from sagann.config import TrainConfig

_ELEMENTWISE = "ASGD Adadelta Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD"
ELEMENTWISE = tuple(getattr(torch.optim, name) for name in _ELEMENTWISE.split())
"Optimizers that step each number by itself. Others add numbers up, which machines may round differently."
REFUSALS = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, ArithmeticError, AssertionError)
"Errors that torch raises for options of a wrong type or value."

_TRIED_EPOCHS = 1000
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
        {"params": [parameter for parameter in trained if decays(parameter)], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if not decays(parameter)], "weight_decay": 0.0},
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
        _require_maker(optimizer, "optimizer", "groups")
        _require_maker(scheduler, "scheduler", "optimizer")
        self._config, self._optimizer, self._scheduler = config, optimizer, scheduler
        self._groups = param_groups or DECAY_POLICIES[config.decay]

    def made(self, model: nn.Module, *, maximise: bool) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
        """The optimizer of a model, and its scheduler, if any; ``maximise`` says whether a higher monitored metric is better."""
        # TrainConfig has put a number in place of None.
        assert self._config.weight_decay is not None
        optimizer = self.optimizer_of(self._groups(model, self._config.weight_decay))
        return optimizer, self.scheduler_of(optimizer, maximise=maximise)

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
        kind = getattr(torch.optim, config.optimizer)
        if "weight_decay" not in inspect.signature(kind).parameters:
            groups = [{name: value for name, value in group.items() if name != "weight_decay"} for group in groups]
        try:
            optimizer: torch.optim.Optimizer = kind(groups, lr=config.lr, **config.optimizer_options)
        except REFUSALS as error:
            raise torch_refuses("optimizer", config.optimizer, error) from error
        return optimizer

    def scheduler_of(self, optimizer: torch.optim.Optimizer, *, maximise: bool) -> LRScheduler | None:
        """Make the scheduler, if there is to be one. ``maximise`` is the default mode of ReduceLROnPlateau.

        A refusal of torch, or a schedule that ends before the last epoch, is an InputError.
        """
        config = self._config
        if self._scheduler is not None:
            return self._scheduler(optimizer)
        if config.scheduler is None:
            return None
        kind = getattr(torch.optim.lr_scheduler, config.scheduler)
        options = dict(config.scheduler_options)
        if issubclass(kind, ReduceLROnPlateau):
            options.setdefault("mode", "max" if maximise else "min")
        try:
            scheduler: LRScheduler = kind(optimizer, **options)
        except REFUSALS as error:
            raise torch_refuses("scheduler", config.scheduler, error) from error
        length = getattr(scheduler, "total_steps", None)
        if (
            isinstance(scheduler, torch.optim.lr_scheduler.OneCycleLR)
            and length is not None
            and length < config.epochs
        ):
            raise InputError(
                f"the schedule ends before training: {length} steps, {config.epochs} epochs (in "
                "TrainConfig.scheduler_options)",
                hint=f"Set total_steps to at least {config.epochs}, or train for fewer epochs.",
            )
        return scheduler

    def try_out(self) -> None:
        """Step the optimizer and the scheduler on a parameter of no use, unless the user makes one of them.

        Torch checks most options only when it uses them, which may be in the middle of training.
        """
        config = self._config
        if self._optimizer is not None or self._scheduler is not None:
            return
        # Two dimensions, which some optimizers insist on.
        parameter = nn.Parameter(torch.zeros(2, 2))
        optimizer = self.optimizer_of([{"params": [parameter], "weight_decay": config.weight_decay}])
        scheduler = self.scheduler_of(optimizer, maximise=True)
        if config.optimizer != "SparseAdam":
            # SparseAdam takes gradients of sparse embeddings only. It also steps without a gradient.
            parameter.grad = torch.zeros_like(parameter)
        for _ in range(min(config.epochs, _TRIED_EPOCHS) if scheduler else 1):
            check_rates(scheduler, optimizer)
            try:
                optimizer.step(lambda: 0.0)
            except REFUSALS as error:
                raise torch_refuses("optimizer", config.optimizer, error) from error
            step_scheduler(scheduler, 0.0)


def _require_maker(given: object, what: str, argument: str) -> None:
    """Refuse an 'optimizer' or 'scheduler' that is made already: resumed runs, rehearsals and workers each make one."""
    if given is None or callable(given):
        return
    name = given if isinstance(given, str) else type(given).__name__
    raise InputError(
        f"the Trainer makes its {what} itself: a {type(given).__name__} is given, expected a function (in "
        f"Trainer.{what})",
        hint=f"Pass {what}=lambda {argument}: {name}({argument}, ...), or its name as TrainConfig({what}='{name}', ...).",
    )


def step_scheduler(scheduler: LRScheduler | None, monitored: float | None) -> None:
    """Step the scheduler, if there is one, at the end of an epoch.

    ReduceLROnPlateau is stepped only where ``monitored``, the value of the monitored metric, was measured in this epoch.
    """
    try:
        if isinstance(scheduler, ReduceLROnPlateau):
            if monitored is not None:
                scheduler.step(monitored)
        elif scheduler is not None:
            scheduler.step()
    except REFUSALS as error:
        raise torch_refuses("scheduler", type(scheduler).__name__, error) from error


def check_rates(scheduler: LRScheduler | None, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a learning rate that a scheduler has made negative or too large for float32."""
    if scheduler is None:
        return
    for group in optimizer.param_groups:
        lr = float(group["lr"])
        if not 0 <= lr <= _LARGEST_LR:
            raise InputError(
                f"the scheduler leaves the range of learning rates: {lr:g} after {scheduler.last_epoch} steps, "
                f"expected 0 to {_LARGEST_LR:.3g} (in TrainConfig.scheduler_options of "
                f"{type(scheduler).__name__})",
                hint="Correct its options; a factor (gamma) is between 0 and 1, a period at least 1.",
            )


def torch_refuses(what: str, name: str, error: Exception) -> InputError:
    """The error of an 'optimizer' or 'scheduler' of the class ``name``, for an error that torch raised."""
    return InputError(
        f"torch refuses the {what}: {name}: {error or type(error).__name__} (in TrainConfig.{what}_options)",
        hint=f"Correct its options; the documentation of {name} lists their types and ranges.",
    )

"""Losses: how far a model's outputs are from the answers, as a mean over vertices.

No vertex's number depends on another vertex. So the loss of many vertices is the mean of their parts' losses, weighted by the sizes of the
parts: the same number in memory, streamed by intervals, by several workers, and over the mini-batches of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from sagann.errors import InputError, shown
from sagann.graph import LINK_TASK, Answers
from sagann.graph.checks import form_of
from sagann.graph.topology import for_training_as_well
from sagann.options import BALANCED
from sagann.storage.json_fields import as_list, as_mapping, as_number, as_text

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Gives the loss of each of n vertices, float [n], or [n, ...] whose mean over a row is the loss of its vertex. The arguments are outputs
[n, C] of the model, and answers: class ids int64 [n], 0 and 1 uint8 [n, C], or targets float [n, T]. Of links, outputs are the scores
of n positive links and of K negative links for each, [n, 1 + K], and answers are 0, the place of the positive one."""

_LARGEST_WEIGHT = torch.finfo(torch.float32).max
_WEIGHTS = "TrainConfig.class_weights"
# Rows on which a loss of the user's is tried.
_TRIED_ROWS = 3


def _link_bce(scores: Tensor, places: Tensor) -> Tensor:
    """Binary cross-entropy of links [n, 1 + K] with logits, whose first column are the positive ones."""
    return (F.softplus(-scores[:, 0]) + F.softplus(scores[:, 1:]).mean(1)).mean() / 2


_LOSSES: Mapping[str, tuple[str, Callable[..., Tensor]]] = MappingProxyType(
    {
        "cross_entropy": ("classification", F.cross_entropy),
        "bce": ("multi-label", F.binary_cross_entropy_with_logits),
        "mse": ("regression", F.mse_loss),
        "mae": ("regression", F.l1_loss),
        "huber": ("regression", F.huber_loss),
        "smooth_l1": ("regression", F.smooth_l1_loss),
        "link_bce": (LINK_TASK, _link_bce),
        "link_softmax": (LINK_TASK, F.cross_entropy),
    }
)
LOSSES: Mapping[str, str] = MappingProxyType({name: task for name, (task, _) in _LOSSES.items()})
"""Losses by name, each with its task, whose first loss is its default. 'bce' is over all classes with logits, those of a regression are over all targets; 'huber' and
'smooth_l1' are linear from an error of 1 on. 'link_bce' tells positive links from negative ones, which weigh as much together as the positive ones;
'link_softmax' finds the positive link among its negative ones."""
LOSS_ALIASES: Mapping[str, str] = MappingProxyType({"l1": "mae"})
"Other names of losses."


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """The loss of a run: a named one, or a function of the user's."""

    name: str
    "Name among LOSSES; or the name of the user's function, in parentheses."
    class_weights: tuple[float, ...] = ()
    "Weight of each class, scaled so that the mean over the training vertices is 1; empty where all weigh 1."
    function: LossFunction | None = None
    "The user's function; None for a named loss, and for the loss of a reopened run whose function was not passed."

    def __call__(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """The mean loss of at least one vertex, a scalar: outputs [n, C], answers as :data:`LossFunction` takes them."""
        if self.function is not None:
            return self._rows(self.function, outputs, answers).mean()
        _, function = _LOSSES[self.name]
        if answers.dtype != torch.int64:
            answers = answers.to(outputs.dtype)
        if not self.class_weights:
            return function(outputs, answers)
        weights = _on(outputs.device, outputs.dtype, self.class_weights)
        # Weights of torch would be divided by their sum over these rows, which depends on how rows are cut into parts.
        return (function(outputs, answers, reduction="none") * weights[answers]).mean()

    @property
    def is_known(self) -> bool:
        """Whether the loss can be computed."""
        return self.function is not None or self.name in LOSSES

    def to_json(self) -> dict[str, Any]:
        """The fields that tell two losses apart, as JSON values."""
        return {"name": self.name, "class_weights": list(self.class_weights)}

    @classmethod
    def from_json(cls, values: object) -> Loss:
        """The inverse of :meth:`to_json`; a TypeError or KeyError where a value is missing or of the wrong type."""
        found = as_mapping(values)
        weights = tuple(as_number(weight, "a class weight") for weight in as_list(found["class_weights"]))
        return cls(name=as_text(found["name"]), class_weights=weights)

    def require_fit(self, kind: str, num_classes: int) -> None:
        """A TypeError for a loss that a model of this kind, with so many classes, cannot have been trained by."""
        fits = not self.class_weights or (self.name == "cross_entropy" and len(self.class_weights) == num_classes)
        if not fits or LOSSES.get(self.name, kind) != kind:
            raise TypeError(
                f"loss is {self.name}, with {len(self.class_weights)} class weights, for {num_classes} classes of {kind}"
            )

    def _rows(self, function: LossFunction, outputs: Tensor, answers: Tensor) -> Tensor:
        """The user's losses of some rows; an InputError where they are not one for each row."""
        losses: object = function(outputs, answers)
        if isinstance(losses, Tensor) and losses.is_floating_point() and losses.shape[:1] == outputs.shape[:1]:
            return losses
        raise InputError(
            f"a loss function must give the loss of each vertex: {form_of(losses)} for {len(outputs)} "
            f"vertices, expected floats [{len(outputs)}], or [{len(outputs)}, ...] (in loss {self.name})",
            hint="Leave out the mean over vertices: reduction='none' in torch's losses.",
        )

    def try_out(self, known: Answers, num_outputs: int, device: torch.device) -> None:
        """Find errors of a function of the user's before anything is trained: its shape, and a vertex that depends on others."""
        if self.function is None:
            return
        mask = known.splits["train"] if "train" in known.splits else next(iter(known.splits.values()))
        _, answers = known.rows(mask)
        answers = answers[:_TRIED_ROWS].to(device)
        outputs = torch.randn(len(answers), num_outputs, device=device, requires_grad=True)
        losses = self._rows(self.function, outputs, answers)
        if not losses.requires_grad:
            raise InputError(
                "a loss function cannot be differentiated: no gradient leads from the losses to the outputs "
                f"(in loss {self.name})",
                hint="Compute the losses with PyTorch, without detach(), item() or NumPy.",
            )
        for at in range(len(answers)):
            part = slice(at, at + 1)
            alone = self._rows(self.function, outputs[part], answers[part]).detach().mean()
            beside = losses[part].detach().mean()
            if not torch.allclose(alone, beside, rtol=1e-3, atol=1e-5, equal_nan=True):
                raise InputError(
                    f"a loss function mixes vertices: the loss of a vertex is {float(beside):g} beside others, "
                    f"and {float(alone):g} alone (in loss {self.name})",
                    hint="Compute each vertex's loss from its own row, without random numbers: the vertices are not always computed together.",
                )


@cache
def _on(device: torch.device, dtype: torch.dtype, numbers: tuple[float, ...]) -> Tensor:
    """Constants on a device, made once and never freed: a copy to the device in each step would wait for it, and recorded epochs read them."""
    with for_training_as_well():
        return torch.tensor(numbers, dtype=dtype, device=device)


def default_loss(task: str) -> Loss:
    """The loss of a task where none is named."""
    return Loss(name=next(name for name, of in LOSSES.items() if of == task))


def build_loss(
    task: str,
    known: Answers,
    *,
    name: str | None = None,
    class_weights: str | Sequence[float] | None = None,
    function: Any = None,
) -> Loss:
    """The loss of a run that learns ``known``, the answers of ``task`` alone: of a name, the task's default, or a function of the user's."""
    if function is not None:
        if not callable(function):
            hint = "Name a loss as TrainConfig(loss='mae'); pass a function of outputs and answers here."
            raise _refused("a loss cannot be called", shown(function), hint, where="Trainer.loss")
        if name is not None:
            value = f"TrainConfig.loss is '{name}', and a function is passed"
            raise _refused("two losses", value, "Pass one of them.")
        kind = function if hasattr(function, "__qualname__") else type(function)
        loss = Loss(name=f"({kind.__qualname__})", function=function)
    else:
        loss = default_loss(task) if name is None else Loss(name=name)
        if LOSSES[loss.name] != task:
            fitting = ", ".join(each for each, of in LOSSES.items() if of == task)
            value = f"'{loss.name}' is for {LOSSES[loss.name]}, the task is {task}"
            raise _refused("the loss does not fit the task", value, f"Choose {fitting}, or pass a function.")
    if class_weights is None:
        return loss
    if loss.name != "cross_entropy":
        value = f"class_weights, with the loss {loss.name}"
        raise _refused("only the loss cross_entropy has class weights", value, "Leave class_weights out.")
    return Loss(name=loss.name, class_weights=_scaled(class_weights, known))


def _scaled(class_weights: str | Sequence[float], known: Answers) -> tuple[float, ...]:
    """A weight for each class, with a mean of 1 over the training vertices."""
    _, labels = known.rows(known.splits["train"])
    counts = torch.bincount(labels.cpu(), minlength=known.num_classes).double()
    if class_weights == BALANCED:
        # A class without a training vertex has no part in training.
        weights = torch.where(counts > 0, 1 / counts.clamp(min=1), 1 / max(1.0, float(counts.max())))
    elif len(class_weights) != known.num_classes:
        value = f"{len(class_weights)} weights, {known.num_classes} classes"
        hint = "Pass one weight for each class, or 'balanced'."
        raise _refused("class weights and classes differ in number", value, hint, where=_WEIGHTS)
    else:
        weights = torch.tensor(class_weights, dtype=torch.float64)
    total = float((counts * weights).sum())
    scaled = weights / total * float(counts.sum()) if total else weights
    if not 0 < total < float("inf") or not float(scaled.max()) <= _LARGEST_WEIGHT:
        value = f"their sum over the training vertices is {total:g}, the largest weight {float(weights.max()):g}"
        hint = "Give positive weights of like magnitude, at least to classes with training vertices."
        raise _refused("class weights cannot be scaled to a mean of 1", value, hint, where=_WEIGHTS)
    return tuple(scaled.tolist())


def _refused(what: str, value: str, hint: str, *, where: str = "TrainConfig.loss") -> InputError:
    return InputError(f"{what}: {value} (in {where})", hint=hint)

"""Metrics of a model's outputs on the splits of a graph, on the CPU.

Metrics are measured on labelled vertices only. A split without a vertex counts as absent. Outputs may be mapped from a
file: they are read slab by slab, and for ROC-AUC a few classes at a time.

- Micro-F1 counts the decisions of all classes together; where a vertex has one class it is the accuracy.
- ROC-AUC of a class, against all others, is defined where the split has both a positive and a negative vertex of the
  class. For two classes the metric is the area of class 1, else the mean over the classes with an area. Where no class
  has one, the metric is left out, so that no mapping ever holds a NaN.
- macro-F1 averages over the classes that occur among labels or predictions (single-label), or over all classes, where an
  empty one counts 0 (multi-label).
- Metrics of links are those of :mod:`sagann.train.link_metrics`.
- MAE and RMSE are over all targets together. R2 is the mean over the targets that vary in the split; where none does, it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph import LINK_TASK, SPLIT_NAMES, Answers
from sagann.graph.checks import CHECKED_AT_ONCE, slices
from sagann.train.link_metrics import area, link_ranks, rank_metrics
from sagann.train.losses import Loss, default_loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """How a model of one kind of task is measured."""

    scores: tuple[str, ...]
    "Names of the metrics that are better the higher they are."
    errors: tuple[str, ...] = ()
    "Names of those, besides the loss, that are better the lower they are, and may have any magnitude."
    quick: str
    "The metric that is measured after every epoch, beside the loss."
    monitor: str
    "The metric that is monitored where none is named."

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics. 'loss' is the training loss on the split, without dropout; of links, over the negative links that each is ranked among."""
        return ("loss", *self.errors, *self.scores)


_OF_CLASSES = ("accuracy", "micro_f1", "macro_f1", "roc_auc")
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "classification": Kind(scores=_OF_CLASSES, quick="accuracy", monitor="accuracy"),
        # Of many rare classes micro-F1 is best while nothing is learned and everything is predicted.
        "multi-label": Kind(scores=_OF_CLASSES, quick="micro_f1", monitor="loss"),
        "regression": Kind(scores=("r2",), errors=("mae", "rmse"), quick="mae", monitor="loss"),
        LINK_TASK: Kind(scores=("mrr", "hits_1", "hits_3", "hits_10", "roc_auc"), quick="mrr", monitor="mrr"),
    }
)
"How each kind of task is measured."
METRICS = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.metrics))
"Every metric."
ERRORS = frozenset(("loss", *(name for kind in KINDS.values() for name in kind.errors)))
"Metrics that are better the lower they are, and may have any magnitude."

Metrics = dict[str, float]

# Scores in memory at once: a few classes of a large split, all classes of a small one.
_SCORES_AT_ONCE = 1 << 25
# Bytes per score, in double precision: the scores of the last classes, those of every slab, and the slabs put together.
_SCORE_BYTES = 24
# Bytes per measured vertex: ids, predictions, and temporaries of ranks, which are sorted and summed class by class.
_ROW_BYTES = 256
# Bytes per decision of a multi-label prediction: those of slabs and those put together, and temporaries of comparisons.
DECISION_BYTES = 4


def present_splits(splits: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The masks that hold a vertex, in the order train, val, test."""
    return {name: splits[name] for name in SPLIT_NAMES if name in splits and bool(splits[name].any())}


def most_measured(known: Answers) -> int:
    """Number of units that are measured together: the largest split, or all where there is no split."""
    return max(int(mask.count_nonzero()) for mask in measured_splits(known).values())


def evaluate_splits(
    outputs: Tensor,
    known: Answers,
    *,
    task: str,
    loss: Loss | None = None,
    splits: Collection[str] = SPLIT_NAMES,
    names: Collection[str] | None = None,
) -> dict[str, Metrics]:
    """Metrics of each of ``splits`` that there are, as :func:`compute_metrics` gives them; of one split 'all' where there are none."""
    found: dict[str, Metrics] = {}
    for name, mask in measured_splits(known).items():
        if name in splits or name == "all":
            rows, answers = known.rows(mask)
            found[name] = compute_metrics(outputs, answers, task=task, loss=loss, names=names, rows=rows)
    return found


def finite(metrics: Mapping[str, Metrics]) -> dict[str, Metrics]:
    """The metrics of each split without those that are NaN or infinite, as the mean of squared errors beyond a type's range."""
    return {
        split: {name: value for name, value in found.items() if math.isfinite(value)}
        for split, found in metrics.items()
    }


def measured_splits(known: Answers) -> dict[str, Tensor]:
    """The masks of the splits that hold a unit; of one split 'all' where there are no splits at all."""
    device = next((rows.device for rows in known.arrays().values()), None)
    return present_splits(known.splits) or {"all": torch.ones(known.count, dtype=torch.bool, device=device)}


def measuring_bytes(num_rows: int, num_outputs: int, *, multi_label: bool) -> int:
    """Most bytes that measuring ``num_rows`` vertices takes besides the outputs and the answers of the graph."""
    scores = min(num_rows * num_outputs, max(num_rows, _SCORES_AT_ONCE))
    decisions = num_rows * num_outputs if multi_label else 0
    return num_rows * _ROW_BYTES + scores * _SCORE_BYTES + decisions * DECISION_BYTES


def compute_metrics(
    outputs: Tensor,
    answers: Tensor,
    *,
    task: str,
    loss: Loss | None = None,
    names: Collection[str] | None = None,
    rows: Tensor | None = None,
) -> Metrics:
    """Measure ``outputs``, float [n, C], against ``answers``: class ids int64 [n], all known; 0 and 1 uint8 [n, C] for 'multi-label';
    float [n, C] for 'regression'; for links, 0 int64 [n], the place of the positive link among its negative ones.

    Where a vertex may have several labels, a class is predicted where its logit is above 0 (probability 0.5), and accuracy is over all n * C
    decisions. A metric that is undefined on these answers is left out; for n = 0, all are. ``rows`` are the rows of ``outputs`` to measure,
    int64 [n]; None for all.
    """
    if len(answers) == 0:
        return {}
    names = KINDS[task].metrics if names is None else names
    chosen, loss = Rows(outputs, rows, len(answers)), loss or default_loss(task)
    found: Metrics = {}
    if "loss" in names and loss.is_known:
        found["loss"] = float(_mean([(loss(slab, answers[part]), len(slab)) for part, slab in chosen.slabs()]))
    if any(name != "loss" for name in names):
        if task == LINK_TASK:
            measured = _measure_links(chosen, with_area="roc_auc" in names)
        elif task == "regression":
            measured = _measure_values(chosen, answers)
        else:
            measured = _measure_classes(chosen, answers.cpu(), with_area="roc_auc" in names)
        found |= {name: value for name, value in measured.items() if name in names}
    return found


def quick_metrics(outputs: Tensor, answers: Tensor, *, task: str, loss: Loss, rows: Tensor) -> dict[str, Tensor]:
    """The loss and the quick metric of a task on vertices, as :func:`compute_metrics` gives them: float64 scalars, for which the host does not wait."""
    losses, found = [], []
    for part, slab in Rows(outputs, rows, len(answers)).slabs():
        true = answers[part]
        losses.append((loss(slab, true), len(slab)))
        if task == "regression":
            found.append((slab.double() - true.double()).abs().sum(dim=0))
            continue
        predicted = predict_classes(slab, multi_label=task == "multi-label")
        if task == "multi-label":
            found.append(torch.stack([(predicted & true).sum(), predicted.sum() + true.sum()]))
        else:
            found.append((predicted == true).sum())
    total: Tensor = reduce(add, found)
    value = _f1(*total) if task == "multi-label" else total.double().mean() / len(answers)
    return {"loss": _mean(losses), KINDS[task].quick: value}


def _mean(losses: Sequence[tuple[Tensor, int]]) -> Tensor:
    """The mean loss of slabs, of which each has a mean and a number of rows, in float64. That of one slab is exact to the last bit."""
    if len(losses) == 1:
        return losses[0][0].double()
    total: Tensor = reduce(add, (mean.double() * count for mean, count in losses))
    return total / sum(count for _, count in losses)


class Rows:
    """Some rows of outputs, which are never all in memory."""

    def __init__(self, outputs: Tensor, rows: Tensor | None, count: int) -> None:
        self.num_classes = outputs.shape[1]
        self.count = count
        self._outputs, self._rows = outputs, rows

    def slabs(self) -> Iterator[tuple[slice, Tensor]]:
        """Ranges of the rows, in order, with their outputs."""
        step = max(1, CHECKED_AT_ONCE // self.num_classes)
        for first in range(0, self.count, step):
            part = slice(first, min(first + step, self.count))
            at = self._rows
            yield part, self._outputs[part] if at is None else self._outputs.index_select(0, at[part])


def predict_classes(logits: Tensor, *, multi_label: bool) -> Tensor:
    """Class ids int64 [n], or uint8 [n, C] of 0/1 for multi-label."""
    return (logits > 0).to(torch.uint8) if multi_label else logits.argmax(dim=1)


def _measure_values(rows: Rows, targets: Tensor) -> Metrics:
    """Metrics of a regression, summed in double precision."""
    absolute = torch.zeros(rows.num_classes, dtype=torch.float64)
    squares, deviations = torch.zeros_like(absolute), torch.zeros_like(absolute)
    means = targets.double().mean(dim=0).cpu()
    for part, outputs in rows.slabs():
        true = targets[part].cpu().double()
        errors = outputs.cpu().double() - true
        absolute += errors.abs().sum(dim=0)
        squares += errors.square().sum(dim=0)
        deviations += (true - means).square().sum(dim=0)
    found = {"mae": float(absolute.mean()) / rows.count, "rmse": (float(squares.mean()) / rows.count) ** 0.5}
    # Not by the deviations: the mean of equal numbers may be rounded.
    varies = (targets != targets[:1]).any(dim=0).cpu()
    if bool(varies.any()):
        found["r2"] = float((1 - squares[varies] / deviations[varies]).mean())
    return found


def _measure_links(rows: Rows, *, with_area: bool) -> Metrics:
    """Metrics of links, each ranked among its negative ones."""
    slabs = [scores.cpu() for _, scores in rows.slabs()]
    found = rank_metrics(torch.cat([link_ranks(scores[:, 0], scores[:, 1:]) for scores in slabs]))
    if with_area:
        scores = torch.cat(slabs)
        truth = torch.zeros(scores.shape, dtype=torch.bool)
        truth[:, 0] = True
        found["roc_auc"] = area(scores.flatten(), truth.flatten())
    return found


def _measure_classes(rows: Rows, labels: Tensor, *, with_area: bool) -> Metrics:
    """Metrics of one class, or of several, for each vertex. Class ids are small; logits leave the device only for ROC-AUC."""
    multi_label, num_classes = labels.ndim == 2, rows.num_classes
    predicted = torch.cat([predict_classes(logits, multi_label=multi_label).cpu() for _, logits in rows.slabs()])
    # Of each class: vertices that are rightly said to have it, those that are said to have it, and those that have it.
    if multi_label:
        right, said, true = counts = torch.zeros(3, num_classes, dtype=torch.int64)
        # A sum over rows makes int64 of all its bits.
        for at in slices(len(labels), num_classes):
            decided, known = predicted[at], labels[at]
            counts += torch.stack([bits.sum(dim=0) for bits in (decided & known, decided, known)])
        num_right = labels.numel() - int((said + true - 2 * right).sum())
    else:
        classes = labels[labels == predicted], predicted, labels
        right, said, true = (torch.bincount(ids, minlength=num_classes) for ids in classes)
        num_right = int(right.sum())
    per_class = _f1(right, said + true)
    found = {
        "accuracy": num_right / labels.numel(),
        "micro_f1": float(_f1(right.sum(), (said + true).sum())),
        "macro_f1": float(per_class.mean() if multi_label else per_class[said + true > 0].mean()),
    }
    if with_area and (areas := list(_areas(rows, labels))):
        found["roc_auc"] = sum(areas) / len(areas)
    return found


def _f1(right: Tensor, predicted_or_true: Tensor) -> Tensor:
    """Harmonic mean of precision and recall; 0 where nothing is predicted and nothing is true."""
    return 2 * right.double() / predicted_or_true.clamp(min=1)


def _areas(rows: Rows, labels: Tensor) -> Iterator[float]:
    """The area of each class that has both a false and a true row."""
    multi_label = labels.ndim == 2
    # For two classes both areas are the same. With one column the area is that of class 1.
    classes = range(1, 2) if rows.num_classes == 2 and not multi_label else range(rows.num_classes)
    at_once = max(1, _SCORES_AT_ONCE // max(1, rows.count))
    for first in range(classes.start, classes.stop, at_once):
        part = slice(first, min(first + at_once, classes.stop))
        slabs = (logits.cpu() for _, logits in rows.slabs())
        # In float64: in float32 confident predictions would all round to 1 and tie.
        each = (slab if multi_label else slab.double().softmax(dim=1) for slab in slabs)
        # A view would keep all classes of the slab in memory.
        scores = torch.cat([slab[:, part].contiguous() for slab in each])
        for number, column in enumerate(scores.unbind(dim=1), start=first):
            truth = labels[:, number] > 0 if multi_label else labels == number
            if 0 < int(truth.count_nonzero()) < len(truth):
                yield area(column, truth)


MetricFunction: TypeAlias = Callable[[Tensor, Tensor], Any]
"""Gives a number from outputs [n, C] of the model for the vertices of a split, and answers: class ids int64 [n], 0 and 1 uint8 [n, C], or
targets float [n, T]. Both are on the CPU."""


@runtime_checkable
class GatheredMetric(Protocol):
    """A metric that gathers slabs of outputs and answers, such as a ``torchmetrics.Metric``."""

    def reset(self) -> None:
        """Forget what was gathered."""

    def update(self, outputs: Tensor, answers: Tensor, /) -> None:
        """Gather the vertices of a slab."""

    def compute(self) -> Any:
        """The metric of all that was gathered, a number."""


OwnMetrics: TypeAlias = Mapping[str, MetricFunction | GatheredMetric]
"Metrics of the user's by name."


def check_own_metrics(metrics: Mapping[Any, Any], *, where: str) -> None:
    """Refuse names that other metrics have or that are no words, and values that cannot be called."""
    require_type(metrics, Mapping, where=where, hint="Pass a mapping of name to function.")
    for name, metric in metrics.items():
        if not isinstance(name, str) or not name.isidentifier() or name in METRICS:
            raise InputError(
                f"name of a metric cannot be used: {name!r}, expected a word other than {', '.join(METRICS)} "
                f"(in {where})",
                hint="Choose another name.",
            )
        if not callable(metric) and not isinstance(metric, GatheredMetric):
            hint = "Pass a function of outputs and answers, or an object with reset, update and compute."
            raise InputError(f"a metric cannot be called: '{name}' is {metric!r:.80} (in {where})", hint=hint)


def measure_own(metrics: OwnMetrics, rows: Rows, answers: Tensor) -> Metrics:
    """Each metric of some rows of outputs; one that is NaN or infinite is left out, as undefined."""
    found: Metrics = {}
    for name, metric in metrics.items():
        with torch.no_grad():
            if isinstance(metric, GatheredMetric):
                if hasattr(metric, "distributed_available_fn"):
                    # Every worker has the rows of all. torchmetrics would add them up once more.
                    metric.distributed_available_fn = lambda: False
                metric.reset()
                for part, outputs in rows.slabs():
                    metric.update(outputs.cpu(), answers[part].cpu())
                value = metric.compute()
            else:
                value = metric(torch.cat([outputs.cpu() for _, outputs in rows.slabs()]), answers.cpu())
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, int | float):
            raise InputError(
                f"a metric must give a number: {type(value).__name__} "
                f"{list(value.shape) if isinstance(value, Tensor) else value!r:.80} (in metric '{name}')",
                hint="Return a float, or a tensor with one element.",
            )
        if math.isfinite(value):
            found[name] = float(value)
    return found

"""Metrics of predictions on one split, most by torchmetrics, on the CPU.

Logits may be mapped from a file: they are read slab by slab, for ROC-AUC a few classes at a time.

Metrics run over labelled vertices only. ROC-AUC is defined for a class that has both a positive and a negative
vertex in the split: for two classes it is the area of class 1, otherwise the mean over the classes for which
it is defined (one against the rest). Where there is none, the metric is left out of the mapping, so that no
mapping ever holds a NaN. macro-F1 averages over the classes that occur among labels or predictions
(single-label), or over all classes, an empty one counting 0 (multi-label).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from sagann.graph.checks import CHECKED_AT_ONCE

METRICS = ("loss", "accuracy", "micro_f1", "macro_f1", "roc_auc")
"Every metric there is; 'loss' is the training loss on the split, without dropout."

Metrics = dict[str, float]

# Scores that are looked at together: a few classes of a large split, all of a small one.
_SCORES_AT_ONCE = 1 << 25
# Of each of them, in double precision: those before, those of every slab, and these put together.
_SCORE_BYTES = 24
# Of a vertex that is measured: ids, predictions, and what ranks are made of, which are sorted and summed class by class.
_ROW_BYTES = 256
# Of a decision whether a vertex has a label: what is predicted and what is true, as int64, and what compares them.
_DECISION_BYTES = 24


def measuring_bytes(num_rows: int, num_classes: int, *, multi_label: bool) -> int:
    """What measuring takes, at most, besides the logits and labels of the graph.

    Args:
        num_rows: vertices of a split.
        num_classes: columns of the logits.
        multi_label: as of :func:`compute_metrics`.
    """
    scores = min(num_rows * num_classes, max(num_rows, _SCORES_AT_ONCE))
    decisions = num_rows * num_classes if multi_label else 0
    return num_rows * _ROW_BYTES + scores * _SCORE_BYTES + decisions * _DECISION_BYTES


def compute_metrics(
    logits: Tensor,
    labels: Tensor,
    *,
    multi_label: bool,
    names: Collection[str] = METRICS,
    rows: Tensor | None = None,
) -> Metrics:
    """Measure ``logits`` against ``labels``.

    Args:
        logits: float [n, C], or with ``rows`` [N, C].
        labels: int64 [n] class ids, all known; or uint8 [n, C] of 0/1 for multi-label.
        multi_label: whether a vertex may have several labels; a class is then predicted where its logit is
            above 0 (probability 0.5), and accuracy is over all n * C decisions.
        names: which of :data:`METRICS`; those undefined on these labels are left out.
        rows: int64 [n], the rows of ``logits`` that are measured; None for all.
    Returns:
        Metric to value; empty for n = 0.
    """
    if len(labels) == 0:
        return {}
    chosen = _Rows(logits, rows, len(labels))
    found: Metrics = {}
    if "loss" in names:
        found["loss"] = _mean_loss(chosen, labels, multi_label=multi_label)
    measure = _multi_label if multi_label else _single_label
    return found | measure(chosen, labels, [name for name in names if name != "loss"])


class _Rows:
    """Some rows of logits, which are never together in memory."""

    def __init__(self, logits: Tensor, rows: Tensor | None, count: int) -> None:
        self.num_classes = logits.shape[1]
        self.count = count
        self._logits, self._rows = logits, rows

    def slabs(self) -> Iterator[tuple[slice, Tensor]]:
        """A range of them after the other, with their logits."""
        step = max(1, CHECKED_AT_ONCE // self.num_classes)
        for first in range(0, self.count, step):
            part = slice(first, min(first + step, self.count))
            at = self._rows
            yield part, self._logits[part] if at is None else self._logits.index_select(0, at[part])

    def predicted(self, *, multi_label: bool) -> Tensor:
        """The classes predicted, on the CPU."""
        return torch.cat([predict_classes(logits, multi_label=multi_label).cpu() for _, logits in self.slabs()])


def _mean_loss(rows: _Rows, labels: Tensor, *, multi_label: bool) -> float:
    parts = [
        (float(loss_of(logits, labels[part], multi_label=multi_label)), part.stop - part.start)
        for part, logits in rows.slabs()
    ]
    # Of one slab it is the mean itself, to the last bit.
    return parts[0][0] if len(parts) == 1 else sum(loss * count for loss, count in parts) / len(labels)


def loss_of(logits: Tensor, labels: Tensor, *, multi_label: bool) -> Tensor:
    """Mean cross-entropy, or mean binary cross-entropy with logits over all n * C decisions: a scalar."""
    if multi_label:
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
    return F.cross_entropy(logits, labels)


def predict_classes(logits: Tensor, *, multi_label: bool) -> Tensor:
    """Class ids int64 [n], or uint8 [n, C] of 0/1 for multi-label."""
    return (logits > 0).to(torch.uint8) if multi_label else logits.argmax(dim=1)


def _single_label(rows: _Rows, labels: Tensor, names: Collection[str]) -> Metrics:
    # Imported here: torchmetrics takes longer to import than torch.
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

    num_classes = rows.num_classes
    # Class ids are small; logits leave the device only for ROC-AUC.
    predicted, labels = rows.predicted(multi_label=False), labels.cpu()

    found: Metrics = {}
    if "accuracy" in names:
        found["accuracy"] = _score(multiclass_accuracy, "micro", predicted, labels, num_classes)
    if "micro_f1" in names:
        found["micro_f1"] = _score(multiclass_f1_score, "micro", predicted, labels, num_classes)
    if "macro_f1" in names:
        found["macro_f1"] = _macro_f1(predicted, labels, num_classes)
    if "roc_auc" in names:
        # float64, because in float32 confident predictions would all round to 1 and tie.
        # For two classes both areas are the same; with one column the area is class 1's.
        classes = range(1, 2) if num_classes == 2 else range(num_classes)
        found |= _roc_auc(
            rows, classes, lambda logits: logits.double().softmax(dim=1), lambda number: (labels == number).long()
        )
    return found


def _multi_label(rows: _Rows, labels: Tensor, names: Collection[str]) -> Metrics:
    from torchmetrics.functional.classification import multilabel_accuracy, multilabel_f1_score

    num_classes = rows.num_classes
    predicted, labels = rows.predicted(multi_label=True).long(), labels.long().cpu()

    found: Metrics = {}
    if "accuracy" in names:
        found["accuracy"] = _score(multilabel_accuracy, "micro", predicted, labels, num_classes)
    if "micro_f1" in names:
        found["micro_f1"] = _score(multilabel_f1_score, "micro", predicted, labels, num_classes)
    if "macro_f1" in names:
        found["macro_f1"] = _score(multilabel_f1_score, "macro", predicted, labels, num_classes)
    if "roc_auc" in names:
        found |= _roc_auc(rows, range(num_classes), lambda logits: logits, lambda number: labels[:, number])
    return found


def _score(
    function: Callable[..., Tensor], average: str, predicted: Tensor, labels: Tensor, num_classes: int
) -> float:
    return float(function(predicted, labels, num_classes, average=average, validate_args=False))


def _macro_f1(predicted: Tensor, labels: Tensor, num_classes: int) -> float:
    """Mean F1 of the classes that occur. Counted class by class: torchmetrics counts every pair of classes."""
    right, truth, said = (
        torch.bincount(ids, minlength=num_classes) for ids in (labels[labels == predicted], labels, predicted)
    )
    occurs = truth + said > 0
    return float((2 * right[occurs] / (truth + said)[occurs]).mean())


def _roc_auc(
    rows: _Rows, classes: range, scores_of: Callable[[Tensor], Tensor], truth_of: Callable[[int], Tensor]
) -> Metrics:
    """Mean area over the classes that have both a 0 and a 1; empty where no class does.

    Args:
        rows: the logits.
        classes: one after the other.
        scores_of: gives the scores of logits on the CPU.
        truth_of: gives 0 or 1 of each row for a class.
    """
    from torchmetrics.functional.classification import binary_auroc

    areas = []
    at_once = max(1, _SCORES_AT_ONCE // max(1, rows.count))
    for first in range(classes.start, classes.stop, at_once):
        part = slice(first, min(first + at_once, classes.stop))
        # A view would keep the slab, with all its classes.
        scores = torch.cat([scores_of(logits.cpu())[:, part].contiguous() for _, logits in rows.slabs()])
        for number, column in enumerate(scores.unbind(dim=1), start=first):
            truth = truth_of(number)
            if 0 < int(truth.sum()) < len(truth):
                # The area depends on the order alone. Ranks hand the order on exactly; torchmetrics would take the sigmoid,
                # whose last bit depends on where in the array an element stands, so that equal scores no longer tie.
                areas.append(binary_auroc(_ranks(column), truth, validate_args=False))
    return {"roc_auc": float(torch.stack(areas).mean())} if areas else {}


def _ranks(scores: Tensor) -> Tensor:
    """Ranks of [n] scores from 0 to 1, equal for equal scores: float64 [n]."""
    distinct, ranks = scores.unique(return_inverse=True)
    return ranks.double() / max(1, len(distinct) - 1)
